package registration

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestADriverThatNoKubeletAsksForSaysSo: a kubelet whose root directory differs from
// the plugin's option never finds the socket.
func TestADriverThatNoKubeletAsksForSaysSo(t *testing.T) {
	for _, asked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			server := &Server{Driver: "driver", Logger: slog.New(slog.NewTextHandler(&log, nil))}
			go server.WarnUnlessAsked(t.Context(), "/var/lib/kubelet/plugins_registry/driver-reg.sock")
			if asked {
				if _, err := server.GetInfo(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(patience + time.Second)
			synctest.Wait()
			if told := strings.Contains(log.String(), "no kubelet has asked for the driver; is --kubelet-dir"); told == asked {
				t.Errorf("asked %v, log %q", asked, log.String())
			}
		})
	}
}
