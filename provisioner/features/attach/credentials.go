package attach

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// The keys of the operator's Secret for a Ceph cluster, which are ceph-csi's.
const (
	cephUserKey = "userID"
	cephKeyKey  = "userKey"
)

// operatorsSecret is a Secret with a key of the operator: for a Ceph cluster, or for the
// volumes of a Cinder.
type operatorsSecret struct {
	client          kubernetes.Interface
	namespace, name string
}

// forNode reads a connection for a node, with the operator's key if it needs that.
func (s operatorsSecret) forNode(ctx context.Context, connection mappers.Connection, request mappers.NodeRequest) (mappers.NodeConnection, error) {
	if s.name != "" && connection.Protocol() == mappers.ProtocolRBD {
		var err error
		if request.CephUser, err = s.read(ctx); err != nil {
			return mappers.NodeConnection{}, err
		}
	}
	return mappers.ForNode(connection, request)
}

// get reads the Secret, which a field of the backend names and which has some keys.
func (s operatorsSecret) get(ctx context.Context, field, keys string) (*corev1.Secret, error) {
	secret, err := s.client.CoreV1().Secrets(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, damaged("Secret %s/%s does not exist, which %s of the backend names; make it with %s", s.namespace, s.name, field, keys)
	case err != nil:
		return nil, fmt.Errorf("cannot read Secret %s/%s: %w", s.namespace, s.name, err)
	}
	return secret, nil
}

// read returns errors that do not repeat what the Secret holds.
func (s operatorsSecret) read(ctx context.Context) (*mappers.NodeCredentials, error) {
	secret, err := s.get(ctx, "csi.cephSecret", cephUserKey+" and "+cephKeyKey)
	if err != nil {
		return nil, err
	}
	user := &mappers.NodeCredentials{User: string(secret.Data[cephUserKey]), Password: strings.TrimSpace(string(secret.Data[cephKeyKey]))}
	if err := mappers.CheckCephUser(*user); err != nil {
		return nil, damaged("Secret %s/%s, which csi.cephSecret of the backend names, cannot be used: %v", s.namespace, s.name, err)
	}
	return user, nil
}

// entries is the prefix of all keys of nodes.
const entries = "node."

// maxConflicts is how often a Secret is read again because somebody else has written
// it.
const maxConflicts = 8

// keep writes a node's credentials into the volume's Secret, or removes those that are
// there if the node needs none.
func (e *Engine) keep(ctx context.Context, pv *corev1.PersistentVolume, node string, credentials *mappers.NodeCredentials) error {
	ref := pv.Spec.CSI.NodeStageSecretRef
	if ref == nil || ref.Namespace != e.Namespace || ref.Name != objects.NodeSecretName(pv.Name) {
		if credentials == nil {
			return nil
		}
		return damaged("PersistentVolume %s does not name Secret %s/%s in spec.csi.nodeStageSecretRef, from which its nodes get their credentials", pv.Name, e.Namespace, objects.NodeSecretName(pv.Name))
	}
	var value []byte
	key := wire.SecretKey(node)
	if credentials != nil {
		var err error
		if key, value, err = wire.SecretEntry(node, wire.Credentials(*credentials)); err != nil {
			return fmt.Errorf("the credentials for node %s cannot be written", node) // omit err, which may show them
		}
	}
	return e.change(ctx, pv.Name, func() error { return e.restore(ctx, pv) }, func(secret *corev1.Secret) bool {
		present, found := secret.Data[key]
		if credentials == nil {
			delete(secret.Data, key)
			return found
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		secret.Data[key] = value
		return !found || !bytes.Equal(present, value)
	})
}

// drop removes a node's credentials from the volume's Secret, or those of all nodes.
func (e *Engine) drop(ctx context.Context, pvName, node string) error {
	if pvName == "" {
		return nil
	}
	return e.change(ctx, pvName, nil, func(secret *corev1.Secret) (changed bool) {
		for key := range secret.Data {
			if node != "" && key == wire.SecretKey(node) || node == "" && strings.HasPrefix(key, entries) {
				delete(secret.Data, key)
				changed = true
			}
		}
		return changed
	})
}

// change edits the Secret of a PersistentVolume, and starts over if somebody else has
// changed it. If there is none, it calls missing to make it, and edits nothing if
// missing is nil or made none.
func (e *Engine) change(ctx context.Context, pvName string, missing func() error, edit func(*corev1.Secret) (changed bool)) error {
	secrets, name := e.Client.CoreV1().Secrets(e.Namespace), objects.NodeSecretName(pvName)
	restored := false
	for range maxConflicts {
		secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && missing != nil && !restored:
			if err := missing(); err != nil {
				return err
			}
			restored = true
			continue
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read Secret %s/%s: %w", e.Namespace, name, err)
		case !objects.IsSecretOf(secret, pvName):
			return damaged("secret %s/%s exists but was not made by standalone-cinder; rename or remove it", e.Namespace, name)
		}
		if !edit(secret) {
			return nil
		}
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot update Secret %s/%s: %w", e.Namespace, name, err)
		}
		return nil
	}
	return fmt.Errorf("something else keeps changing Secret %s/%s", e.Namespace, name)
}

// restore makes a Secret that somebody deleted. It reads the PersistentVolume first,
// because the Secret may be gone together with it.
func (e *Engine) restore(ctx context.Context, pv *corev1.PersistentVolume) error {
	live, err := e.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot tell whether PersistentVolume %s still exists: %w", pv.Name, err)
	}
	if live.UID != pv.UID || live.DeletionTimestamp != nil {
		return fmt.Errorf("PersistentVolume %s was deleted in the meantime", pv.Name)
	}
	_, err = e.Client.CoreV1().Secrets(e.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: objects.NodeSecretName(pv.Name), Namespace: e.Namespace, Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy},
			Annotations: map[string]string{objects.AnnotationForPV: pv.Name, objects.AnnotationCluster: e.Cluster},
		},
		Type: corev1.SecretTypeOpaque,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot create Secret %s/%s: %w", e.Namespace, objects.NodeSecretName(pv.Name), err)
	}
	e.Logger.Warn("The Secret of a CSI PersistentVolume was missing", "secret", objects.NodeSecretName(pv.Name), "persistentVolume", pv.Name)
	return nil
}
