package campaign

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// makeKeys creates the Secret of key-encryption keys, with an entry for each variant of the
// policy.
func (w *world) makeKeys(ctx context.Context) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: w.names.keys(), Labels: map[string]string{objects.LabelKeyEncryption: "true"}}, StringData: map[string]string{}}
	for variant := range plan.PolicyVariants {
		secret.StringData[strconv.Itoa(variant)] = fmt.Sprintf("%032x%032x", w.plan.Seed, variant+1)
	}
	err := insist(ctx, func(ctx context.Context) error {
		_, err := w.suite.Client.CoreV1().Secrets(harness.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("key-encryption keys: %w", err)
	}
	return nil
}

func (w *world) sweepKeys(ctx context.Context) error {
	return destroy(ctx, w.suite.Client.CoreV1().Secrets(harness.Namespace), w.names.keys())
}

// noteKeys finds volumes of Sealed whose content is not encrypted, and logs with a key.
func (w *world) noteKeys() {
	logs := w.sources().Logs
	for _, p := range w.allWorkloads() {
		if p.step.Class != plan.Sealed {
			continue
		}
		found := func(kind checker.Kind, text string) {
			w.found(checker.Finding{Kind: kind, Object: "volume " + p.volumeID, Text: text, VolumeID: p.volumeID, ClaimUID: string(p.uid)})
		}
		passphrases, plain := w.storage.Encryption(p.volumeID)
		if plain {
			found(checker.InTheClear, "its rule encrypts, and its content has no LUKS header")
		}
		if len(passphrases) > 0 {
			w.change(func(c *Counts) { c.Sealed++ })
		}
		for name, log := range logs {
			for _, passphrase := range passphrases {
				if strings.Contains(log, passphrase) {
					found(checker.KeyShown, "its passphrase is in the log of "+name)
				}
			}
		}
	}
}
