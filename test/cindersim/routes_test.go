package cindersim

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestEveryRouteIsPerformed: what the routes name, the state performs.
func TestEveryRouteIsPerformed(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for request, operation := range map[string]string{
		"GET volumes": "volume.list", "POST volumes": "volume.create", "GET volumes/x": "volume.get", "PUT volumes/x": "volume.update",
		"DELETE volumes/x": "volume.delete", "GET volumes/x/metadata": "metadata.list", "POST volumes/x/metadata": "metadata.update",
		"PUT volumes/x/metadata": "metadata.replace", "GET volumes/x/metadata/k": "metadata.get", "PUT volumes/x/metadata/k": "metadata.set",
		"DELETE volumes/x/metadata/k": "metadata.delete", "POST volumes/x/action": "action", "GET snapshots": "snapshot.list",
		"POST snapshots": "snapshot.create", "GET snapshots/x": "snapshot.get", "DELETE snapshots/x": "snapshot.delete",
		"POST snapshots/x/metadata": "snapshot.metadata.update", "GET attachments": "attachment.list", "POST attachments": "attachment.create",
		"GET attachments/x": "attachment.get", "PUT attachments/x": "attachment.update", "DELETE attachments/x": "attachment.delete",
		"POST attachments/x/action": "attachment.action", "GET messages": "message.list", "GET messages/x": "message.get", "GET types": "type.list",
		"GET types/x": "type.get", "GET os-availability-zone": "zone.list", "GET limits": "limits.get", "GET os-quota-sets/x": "quota.get",
		"GET os-quota-sets/x/defaults": "quota.defaults", "PUT os-quota-sets/x": "quota.update", "DELETE os-quota-sets/x": "quota.delete",
		"GET group_types": "group_type.list", "GET groups": "group.list", "GET groups/detail": "group.list", "POST groups": "group.create", "GET groups/x": "group.get",
		"PUT groups/x": "group.update", "POST groups/x/action": "group.action", "GET group_snapshots": "group_snapshot.list", "POST group_snapshots": "group_snapshot.create",
		"GET group_snapshots/x": "group_snapshot.get", "DELETE group_snapshots/x": "group_snapshot.delete", "GET os-services": "service.list", "GET scheduler-stats/get_pools": "pool.list",
	} {
		method, path, _ := strings.Cut(request, " ")
		sent := httptest.NewRequest(method, "http://cinder/v3/"+path, strings.NewReader(`{}`))
		sent.Header.Set("X-Auth-Token", "admin:"+DefaultNoauthProject)
		sent.Header.Set("OpenStack-API-Version", "volume 3.70")
		answer := httptest.NewRecorder()
		s.NoauthHandler().ServeHTTP(answer, sent)
		journal := s.Journal()
		if got := journal[len(journal)-1].Operation; got != operation || answer.Code == http.StatusInternalServerError {
			t.Errorf("%s is %s, want %s; status %d: %s", request, got, operation, answer.Code, answer.Body)
		}
	}
}
