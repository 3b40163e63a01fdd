package mappers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

func TestParseConnectionRefusesWhatIsNoConnection(t *testing.T) {
	const unchanged = "; pass Cinder's answer unchanged"
	const failed = "; this backend's driver failed to describe the connection, so check the cinder-volume log"
	for name, test := range map[string]struct{ document, want string }{
		"nothing":           {``, "the connection document is not JSON (near byte 0)" + unchanged},
		"a list":            {`[]`, "the connection document is a list, expected an object" + unchanged},
		"null":              {`null`, "the connection document is null, expected an object" + unchanged},
		"half an object":    {`{"driver_volume_type": "iscsi"`, "the connection document is not JSON (near byte 30)" + unchanged},
		"half a list":       {`{"a": [1`, "the connection document is not JSON (near byte 8)" + unchanged},
		"two objects":       {`{} {}`, "the connection document has something after its end" + unchanged},
		"a key twice":       {`{"driver_volume_type": "iscsi", "data": {"encrypted": true, "encrypted": false}}`, "the connection document has a key twice (near byte 71)" + unchanged},
		"a key no string":   {`{1: 2}`, "the connection document is not JSON (near byte 1)" + unchanged},
		"broken UTF-8":      {"{\"driver_volume_type\": \"\xff\"}", "the connection document is not valid UTF-8" + unchanged},
		"too deep":          {strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat(`}`, 40), "the connection document is nested more than 32 levels deep" + unchanged},
		"too long":          {`{"a": "` + strings.Repeat("a", 1<<20) + `"}`, "the connection document is 1048585 bytes long, more than the 1048576 expected at most" + unchanged},
		"no type":           {`{"data": {"a": 1}}`, `driver_volume_type is missing, expected a protocol's name such as "iscsi"` + unchanged},
		"type of number":    {`{"driver_volume_type": 1, "data": {"a": 1}}`, `driver_volume_type is a number, expected a protocol's name such as "iscsi"` + unchanged},
		"type empty":        {`{"driver_volume_type": "", "data": {"a": 1}}`, `driver_volume_type is "", which is no protocol: this backend's driver failed to say how the volume is connected, so check the cinder-volume log`},
		"type a sentence":   {`{"driver_volume_type": "to be\nnamed", "data": {"a": 1}}`, `driver_volume_type is not a protocol's name (letters, digits, ".", "_" and "-")` + unchanged},
		"data a string":     {`{"driver_volume_type": "iscsi", "data": "a"}`, "data is a string, expected an object" + failed},
		"data null":         {`{"driver_volume_type": "iscsi", "data": null, "target_lun": 1}`, "data is null, expected an object" + failed},
		"flat and empty":    {`{"driver_volume_type": "iscsi", "attachment_id": "a"}`, "the connection has type iscsi and no other fields; this backend's driver failed to describe it, so check the cinder-volume log"},
		"info a list":       {`{"connection_info": [1]}`, "connection_info is a list: Cinder has not connected the volume; connect it with a connector first"},
		"attachment null":   {`{"attachment": null}`, "attachment is null: Cinder has not connected the volume; connect it with a connector first"},
		"attachment listed": {`{"attachment": {"id": "a"}}`, `driver_volume_type is missing, expected a protocol's name such as "iscsi"` + unchanged},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := mappers.ParseConnection([]byte(test.document))
			expectRefusal(t, err, mappers.InvalidConnection, test.want)
			if connection.Protocol() != "" {
				t.Errorf("a refused document gives a connection of protocol %q", connection.Protocol())
			}
		})
	}
}

func expectRefusal(t *testing.T, err error, reason mappers.Reason, message string) {
	t.Helper()
	var refusal *mappers.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("error is %v, expected a refusal", err)
	}
	if refusal.Reason != reason {
		t.Errorf("reason is %s, expected %s", refusal.Reason, reason)
	}
	if refusal.Error() != message {
		t.Errorf("message is\n%s\nexpected\n%s", refusal, message)
	}
}

func TestProtocolIsInLowerCase(t *testing.T) {
	connection, err := mappers.ParseConnection([]byte(`{"driver_volume_type": "iSCSI", "data": {"target_lun": 1}}`))
	if err != nil {
		t.Fatal(err)
	}
	if connection.Protocol() != "iscsi" {
		t.Errorf("protocol is %q, expected iscsi", connection.Protocol())
	}
}

// TestPrintingHidesCredentials: whoever logs a connection, a request or a
// result must not log a password.
func TestPrintingHidesCredentials(t *testing.T) {
	const password = "not-a-real-secret"
	connection, err := mappers.ParseConnection([]byte(`{"driver_volume_type": "iscsi", "data": {
		"target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:a", "target_lun": 1,
		"auth_method": "CHAP", "auth_username": "user", "auth_password": "` + password + `"}}`))
	if err != nil {
		t.Fatal(err)
	}
	request := plainRequest()
	request.Connection = connection
	result, err := newRegistry(t).Map(request)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(result.Secret.Data["node.session.auth.password"]); got != password {
		t.Fatalf("the secret has password %q, so this test would prove nothing", got)
	}

	for name, value := range map[string]any{
		"connection": connection, "pointer to connection": &connection, "request": request,
		"result": result, "secret": result.Secret, "secret by value": *result.Secret,
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			if text := fmt.Sprintf(verb, value); strings.Contains(text, password) {
				t.Errorf("%s of the %s shows the password: %s", verb, name, text)
			}
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(encoded, []byte(password)) {
			t.Errorf("the %s as JSON shows the password: %s", name, encoded)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("mapped", "value", value)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("mapped", "value", value)
		if strings.Contains(log.String(), password) {
			t.Errorf("the %s in a log shows the password: %s", name, log.String())
		}
	}

	const connectionText = "iscsi connection (auth_method, auth_password, auth_username, target_iqn, target_lun, target_portal)"
	if got := fmt.Sprint(connection); got != connectionText {
		t.Errorf("the connection prints as %q, expected %q", got, connectionText)
	}
	const secretText = "secret " + testNamespace + "/" + testSecret + " (node.session.auth.password, node.session.auth.username)"
	if got := fmt.Sprint(result.Secret); got != secretText {
		t.Errorf("the secret prints as %q, expected %q", got, secretText)
	}
}
