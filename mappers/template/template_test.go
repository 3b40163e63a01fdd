package template_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// values returns what the templates of these tests are filled in with.
func values(t testing.TB) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(`{
		"connection": {
			"export": "192.0.2.9:/export", "name": "volumes/volume-1", "portal": "[2001:db8::1]:3260", "lun": 7, "large": 1e3, "odd": 1.50,
			"luns": [1, 2, 3], "nested": [["192.0.2.1", 4420, "tcp"], ["192.0.2.2", 4420, "tcp"]], "flag": true, "none": null, "empty": "",
			"auth_password": "not-a-real-secret", "keyring": "[client.a]\n\tkey = x\n", "line": "a\nb", "nul": "a\u0000b", "broken": "a\ufffdb",
			"odd-name": "dashes", "config": {"server": "192.0.2.5", "api_token": "not-a-real-token", "depth": {"user": "admin"}},
			"braces": "{{ .connection.auth_password }}", "long": "` + strings.Repeat("x", 70000) + `", "medium": "` + strings.Repeat("x,", 1500) + `"
		},
		"volume": {"id": "id-1", "name": "pvc-1", "size": 10, "type": "fast", "zone": null},
		"claim": {"namespace": "team-a", "name": "data", "uid": "uid-1"},
		"pv": {"name": "pvc-1"}, "connector": {"host": "node-1"}, "tenant": "team-a", "fsType": "xfs", "readOnly": false,
		"nfs": {"server": "192.0.2.9", "file": "volume-1"}
	}`))
	decoder.UseNumber()
	var tree map[string]any
	if err := decoder.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestExecute(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                                     "",
		"plain":                                                                "plain",
		"{{ .volume.id }}":                                                     "id-1",
		"a-{{.volume.id}}-{{ .volume.size }}":                                  "a-id-1-10",
		"{{- .tenant -}}  ":                                                    "team-a",
		"{{/* a remark */}}x":                                                  "x",
		"{{ .readOnly }} {{ .connection.flag }}":                               "false true",
		"{{ .connection.lun }}":                                                "7",
		"{{ .connection.large }}":                                              "1000",
		"{{ .connection.odd }}":                                                "1.50",
		"{{ .connection.none | default \"x\" }}":                               "x",
		"{{ .connection.empty | default \"x\" }}":                              "x",
		"{{ .connection.absent | default \"x\" }}":                             "x",
		"{{ .connection.absent | default .volume.id }}":                        "id-1",
		"{{ .connection.absent.below | default \"x\" }}":                       "x",
		"{{ .volume.zone | default \"\" }}":                                    "",
		"{{ .connection.export | default \"x\" }}":                             "192.0.2.9:/export",
		"{{ default 5 .connection.absent }}":                                   "5",
		"{{ .connection.flag | default true }}":                                "true",
		"{{ index .connection.luns 1 }}":                                       "2",
		"{{ index .connection.luns 9 | default \"none\" }}":                    "none",
		"{{ index .connection.nested 1 0 }}":                                   "192.0.2.2",
		"{{ index .connection \"odd-name\" }}":                                 "dashes",
		"{{ index .connection.config \"depth\" \"user\" }}":                    "admin",
		"{{ (index .connection.config \"depth\").user }}":                      "admin",
		"{{ .connection.config.server }}":                                      "192.0.2.5",
		"{{ index .connection.config .volume.id | default \"-\" }}":            "-",
		"{{ .connection.luns | join \",\" }}":                                  "1,2,3",
		"{{ join \", \" .connection.luns }}":                                   "1, 2, 3",
		"{{ .connection.export | split \":\" | join \"|\" }}":                  "192.0.2.9|/export",
		"{{ index (split \":\" .connection.export) 1 }}":                       "/export",
		"{{ .connection.name | base }} {{ .connection.name | dir }}":           "volume-1 volumes",
		"{{ .connection.name | replace \"/\" \"_\" | upper }}":                 "VOLUMES_VOLUME-1",
		"{{ .connection.name | trimPrefix \"volumes/\" | trimSuffix \"-1\" }}": "volume",
		"{{ \"ABC\" | lower }}":                                                "abc",
		"{{ host .connection.portal }} {{ .connection.portal | port }}":        "2001:db8::1 3260",
		"{{ printf \"%04d-%x-%s-%%\" .connection.lun 255 .volume.id }}":        "0007-ff-id-1-%",
		"{{ .connection.luns | json }}":                                        "[1,2,3]",
		"{{ .connection.export | json }}":                                      `"192.0.2.9:/export"`,
		"{{ index .connection.nested 0 | json }}":                              `["192.0.2.1",4420,"tcp"]`,
		// Values are data, whatever they look like.
		"{{ .connection.braces }}": "{{ .connection.auth_password }}",
		"{{ .nfs.file }}":          "volume-1",
	} {
		t.Run(text, func(t *testing.T) {
			parsed, err := template.Parse(text, template.Use{Protocol: "nfs", Facts: facts()})
			if err != nil {
				t.Fatal(err)
			}
			got, err := parsed.Execute(values(t))
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("result is %q, expected %q", got, want)
			}
		})
	}
}

func TestExecuteFails(t *testing.T) {
	for text, want := range map[string]string{
		"{{ .connection.absent }}":                                                      `connection.absent is missing; if the driver can do without it, write {{ .connection.absent | default "" }}`,
		"{{ .connection.none }}":                                                        `connection.none is missing; if the driver can do without it, write {{ .connection.none | default "" }}`,
		"{{ .volume.zone }}":                                                            `volume.zone is missing; if the driver can do without it, write {{ .volume.zone | default "" }}`,
		"{{ index .connection.luns 9 }}":                                                `connection.luns[9] is missing; if the driver can do without it, write {{ index .connection.luns 9 | default "" }}`,
		"{{ .connection.luns }}":                                                        "connection.luns is a list, but text is needed; take an element with index, or all with join",
		"{{ .connection.config }}":                                                      "connection.config is an object, but text is needed; name one of its fields",
		"{{ .connection.nested | join \",\" }}":                                         "connection.nested[0] is a list, but text is needed; take an element with index, or all with join",
		"{{ .connection.lun.more }}":                                                    `connection.lun is a number, which has no field "more"`,
		"{{ (index .connection.luns 0).more }}":                                         `connection.luns[0] is a number, which has no field "more"`,
		"{{ index .connection.lun 0 }}":                                                 "connection.lun[0]: a number has no elements",
		"{{ index .connection.luns \"a\" }}":                                            `connection.luns["a"]: a list is indexed by whole numbers`,
		"{{ index .connection.config 0 }}":                                              "connection.config[0]: an object is indexed by names",
		"{{ .connection.export | join \",\" }}":                                         "connection.export is text, but join needs a list",
		"{{ .connection.absent | join \",\" }}":                                         `connection.absent is missing; if the driver can do without it, write {{ .connection.absent | default "" }}`,
		"{{ .connection.absent | upper }}":                                              `connection.absent is missing; if the driver can do without it, write {{ .connection.absent | default "" }}`,
		"{{ .connection.name | host }}":                                                 "connection.name is not an address and port",
		"{{ printf \"%d\" .connection.name }}":                                          "connection.name is not a whole number",
		"{{ .connection.export | split .connection.empty }}":                            "connection.empty is empty, but split needs a separator",
		"{{ .connection.export | replace .connection.empty \"x\" }}":                    "connection.empty is empty, but replace needs text to look for",
		"{{ .connection.line }}":                                                        "a value holds control characters or broken text",
		"{{ .connection.nul }}":                                                         "a value holds control characters or broken text",
		"{{ .connection.broken }}":                                                      "a value holds control characters or broken text",
		"{{ .connection.long }}":                                                        "connection.long is longer than 65536 bytes",
		"{{ index .connection \"long\" }}":                                              `connection["long"] is longer than 65536 bytes`,
		"{{ .connection.medium }}{{ .connection.medium }}":                              "the result is longer than 4096 bytes",
		"{{ .connection.medium | replace \",\" \"" + strings.Repeat("y", 100) + "\" }}": "the result of replace is longer than 65536 bytes",
		"{{ .connection.medium | split \",\" | join \"" + strings.Repeat("y", 100) + "\" }}": "the result of join is longer than 65536 bytes",
		// A name that is only known now may be that of a credential.
		"{{ index .connection.config (printf \"api_%s\" \"token\") }}": "a value that holds a credential may be used only under secret.data",
		"{{ .connection.config | json }}":                              "a value that holds a credential may be used only under secret.data",
	} {
		t.Run(text, func(t *testing.T) {
			parsed, err := template.Parse(text, template.Use{Protocol: "nfs", Facts: facts()})
			if err != nil {
				t.Fatal(err)
			}
			got, err := parsed.Execute(values(t))
			if err == nil || err.Error() != want {
				t.Errorf("error is %v (result %q), expected %s", err, got, want)
			}
		})
	}
}

// facts returns the names that two protocols add to the language.
func facts() map[string][]string {
	return map[string][]string{"nfs": {"export", "server", "path", "file", "format", "options"}, "rbd": {"pool", "image"}}
}

// TestSecrets: credentials and line breaks go into Secrets, and nowhere else.
func TestSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"{{ .connection.auth_password }}":                              "not-a-real-secret",
		"{{ .connection.keyring }}":                                    "[client.a]\n\tkey = x\n",
		"{{ index .connection \"auth_password\" }}":                    "not-a-real-secret",
		"{{ .connection.config | json }}":                              `{"api_token":"not-a-real-token","depth":{"user":"admin"},"server":"192.0.2.5"}`,
		"{{ index .connection.config (printf \"api_%s\" \"token\") }}": "not-a-real-token",
	} {
		t.Run(text, func(t *testing.T) {
			parsed, err := template.Parse(text, template.Use{Secret: true})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := parsed.Execute(values(t)); err != nil || got != want {
				t.Errorf("result is %q and %v, expected %q", got, err, want)
			}
		})
	}
	parsed, err := template.Parse("{{ .connection.nul }}", template.Use{Secret: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parsed.Execute(values(t)); !errors.Is(err, template.ErrControlCharacter) {
		t.Errorf("result is %q and %v, expected %v", got, err, template.ErrControlCharacter)
	}
}

func TestParseMistakes(t *testing.T) {
	functions := "; the functions are " + strings.Join(template.FunctionNames(), ", ")
	const noLoops = " is not part of this language, which has no conditions or loops; use default, index and join"
	for text, want := range map[string][]string{
		"{{ .volume.id":                                {"the template cannot be read: unclosed action"},
		"{{ .volume.id }":                              {`the template cannot be read: unexpected "}" in operand`},
		"a\n{{ .volume.id }":                           {`the template cannot be read: line 2: unexpected "}" in operand`},
		"{{ }}":                                        {"the template cannot be read: missing value for command"},
		"{{ \"a }}":                                    {"the template cannot be read: unterminated quoted string"},
		"{{ . }}":                                      {". alone is not a value; name one, such as .volume.id"},
		"{{ .connection }}":                            {".connection cannot be used as a whole, since it may hold credentials; name one of its fields"},
		"{{ .connection | json }}":                     {".connection cannot be used as a whole, since it may hold credentials; name one of its fields"},
		"{{ index .connection }}":                      {"index is called as " + template.Usage("index") + ", not with 1 arguments"},
		"{{ index .connection .volume.id }}":           {"index .connection needs the name of a field in quotes"},
		"{{ index .connection 0 }}":                    {"index .connection needs the name of a field in quotes"},
		"{{ .volume }}":                                {".volume is not a value; name one of its fields: id, name, size, type, zone"},
		"{{ .volum.id }}":                              {"unknown value .volum.id; did you mean .volume?"},
		"{{ .Volume.id }}":                             {"unknown value .Volume.id; did you mean .volume?"},
		"{{ .volume.uuid }}":                           {"unknown value .volume.uuid; the known names are id, name, size, type, zone"},
		"{{ .volume.id.more }}":                        {"unknown value .volume.id.more: .volume.id has no fields"},
		"{{ .tenant.name }}":                           {"unknown value .tenant.name: .tenant has no fields"},
		"{{ .rbd.pool }}":                              {".rbd.pool is known only for connections of protocol rbd"},
		"{{ .nfs.files }}":                             {"unknown value .nfs.files; did you mean .file?"},
		"{{ .environment.HOME }}":                      {"unknown value .environment.HOME; the known names are claim, connection, connector, fsType, nfs, pv, readOnly, tenant, volume"},
		"{{ if .tenant }}x{{ else }}y{{ end }}":        {"{{if}}" + noLoops},
		"{{ range .connection.luns }}{{ . }}{{ end }}": {"{{range}}" + noLoops},
		"{{ range 1000000000 }}x{{ end }}":             {"{{range}}" + noLoops},
		"{{ with .tenant }}{{ . }}{{ end }}":           {"{{with}}" + noLoops},
		"{{ define \"a\" }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}": {"{{define}} is not part of this language; write the text in its place"},
		"{{ template \"a\" }}":                   {"{{template}}" + noLoops},
		"{{ $x := .tenant }}":                    {"$x is not part of this language, which has no variables"},
		"{{ $ }}":                                {"$ is not part of this language, which has no variables"},
		"{{ nil }}":                              {"nil is not part of this language"},
		"{{ call .tenant }}":                     {`unknown function "call"` + functions},
		"{{ html .tenant }}":                     {`unknown function "html"` + functions},
		"{{ env \"HOME\" }}":                     {`unknown function "env"` + functions},
		"{{ .tenant.String }}":                   {"unknown value .tenant.String: .tenant has no fields"},
		"{{ .tenant .volume.id }}":               {".tenant is not a function and takes no arguments" + functions},
		"{{ .tenant | .volume.id }}":             {".volume.id is not a function and takes no arguments" + functions},
		"{{ join lower .tenant }}":               {"put lower and its arguments in parentheses"},
		"{{ join comma .tenant }}":               {`unknown word "comma"; names of values begin with a dot, text goes in quotes`},
		"{{ lower }}":                            {"lower is called as TEXT | lower, not with 0 arguments"},
		"{{ index .connection.luns 1.5 }}":       {"1.5 is not a whole number; put it in quotes"},
		"{{ split \"\" .tenant }}":               {"split looks for empty text; write the text to look for"},
		"{{ printf .tenant }}":                   {"printf needs its format in quotes"},
		"{{ printf \"%v\" .tenant }}":            {`printf does not support the format "%v"; it supports %s, %d, %x, %X and %%, with a width such as %04d`},
		"{{ printf \"%999d\" 1 }}":               {`printf does not support the format "%999d"; it supports %s, %d, %x, %X and %%, with a width such as %04d`},
		"{{ printf \"%d %d\" 1 }}":               {"printf has 1 values for the 2 in its format"},
		"{{ .connection.auth_password }}":        {"auth_password of .connection is a credential and may be used only under secret.data"},
		"{{ .connection.config.api_token }}":     {"api_token of .connection is a credential and may be used only under secret.data"},
		"{{ index .connection \"keyring\" }}":    {"keyring of .connection is a credential and may be used only under secret.data"},
		"{{ index .connection.a 0 \"token\" }}":  {"token of .connection is a credential and may be used only under secret.data"},
		"{{ (index .connection.a 0).password }}": {"password is a credential and may be used only under secret.data"},
		"{{ .volum.id }}{{ .tenants }}":          {"unknown value .volum.id; did you mean .volume?", "unknown value .tenants; did you mean .tenant?"},
		strings.Repeat("x", 4097):                {"the template is longer than 4096 bytes"},
		"{{ " + strings.Repeat("(", 2000) + ".tenant" + strings.Repeat(")", 2000) + " }}": nil,
	} {
		t.Run(text[:min(len(text), 60)], func(t *testing.T) {
			_, err := template.Parse(text, template.Use{Protocol: "nfs", Facts: facts()})
			var mistakes template.Mistakes
			if want != nil && !errors.As(err, &mistakes) || !reflect.DeepEqual([]string(mistakes), want) {
				t.Errorf("mistakes are\n%q, expected\n%q (%v)", mistakes, want, err)
			}
		})
	}
}

// TestIdentity: what names a volume differs from volume to volume, and no
// tenant chooses it.
func TestIdentity(t *testing.T) {
	const shared = "it may be the same for several volumes, so nodes could mount the wrong one; include one of these: .volume.id, .volume.name, .pv.name, .claim.uid, .nfs.file, .connection.disk"
	for text, want := range map[string]string{
		"{{ .volume.id }}":                                "",
		"{{ .pv.name }}":                                  "",
		"{{ .claim.uid }}":                                "",
		"a-{{ .connection.disk }}":                        "",
		"{{ index .connection \"disk\" }}":                "",
		"{{ .nfs.file }}":                                 "",
		"{{ .tenant }}/{{ .volume.name }}":                "",
		"{{ .nfs.export }}#{{ .nfs.file }}":               "",
		"{{ .connection.name }}-{{ .volume.id }}":         "",
		"{{ .nfs.file | default .volume.id }}":            "",
		"{{ .volume.id | replace \"-\" \"\" | upper }}":   "",
		"{{ .volume.id | split \"-\" | join \"\" }}":      "",
		"{{ printf \"%s-%s\" .tenant .volume.id }}":       "",
		"{{ .nfs.file | trimPrefix \"volume-\" | base }}": "",

		"fixed":                                            shared,
		"{{ .tenant }}":                                    shared,
		"{{ .volume.type }}":                               shared,
		"{{ .nfs.export }}":                                shared,
		"{{ .nfs.server }}:{{ .nfs.path }}":                shared,
		"{{ .connection.name }}":                           shared,
		"{{ index .connection \"name\" }}":                 shared,
		"{{ index .connection.disk 0 }}":                   shared,
		"{{ (index .connection.a 0).disk }}":               shared,
		"{{ .connection.encrypted }}":                      shared,
		"{{ .nfs.export | default .volume.id }}":           shared,
		"{{ .nfs.file | default \"none\" }}":               shared,
		"{{ .nfs.file | dir }}":                            shared,
		"{{ index (.volume.id | split \"-\") 0 }}":         shared,
		"{{ .connection.list | join .volume.id }}":         shared,
		"{{ .volume.id | trimPrefix .volume.id }}x":        shared,
		"{{ .connection.name | replace .volume.id \"\" }}": shared,
		"{{ .claim.name }}":                                ".claim.name is chosen by the tenant and must not identify a volume; use .volume.id or .pv.name",
		"{{ .claim.namespace }}-{{ .pv.name }}":            ".claim.namespace is chosen by the tenant and must not identify a volume; use .volume.id or .pv.name",
	} {
		t.Run(text, func(t *testing.T) {
			got := ""
			if _, err := template.Parse(text, template.Use{Protocol: "nfs", Facts: facts(), Identity: true, Identities: []string{"nfs.file", "connection.disk"}}); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("mistake is %q, expected %q", got, want)
			}
		})
	}
}

// TestDeviceIdentifier: drivers have many fields for the identifier of a disk.
func TestDeviceIdentifier(t *testing.T) {
	for text, want := range map[string]string{
		"{{ .connection.wwn }}":  "",
		"3{{ .connection.wwn }}": "",
		"fixed":                  "it is the same for every volume; include a value of the connection that identifies the disk",
		"{{ .tenant }}":          "it is the same for every volume; include a value of the connection that identifies the disk",
		"{{ .claim.name }}":      ".claim.name is chosen by the tenant and must not identify a volume; use .volume.id or .pv.name",
	} {
		got := ""
		if _, err := template.Parse(text, template.Use{Protocol: "nfs", Facts: facts(), Device: true}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: mistake is %q, expected %q", text, got, want)
		}
	}
}

func TestCredentialNames(t *testing.T) {
	for _, name := range []string{
		"auth_password", "discovery_auth_password", "keyring", "api_token", "serverPassword", "serverToken", "vmware_host_password",
		"key", "userKey_key", "apiKey", "private_key", "passphrase", "credentials", "chap_secret", "pwd", "passwd", "client_pass",
		"provider_auth", "chap_pw", "pw", "pw_2", "psk", "tls_psk", "sshkey", "ssh_key", "hostkey_key", "dhchap_ctrl_key", "passcode", "private", "userPass", "chapPw", "jwt", "KEY",
	} {
		if !template.IsCredential(name) {
			t.Errorf("%s is not taken for a credential", name)
		}
	}
	for _, name := range []string{"auth_username", "auth_method", "target_portal", "name", "export", "secret_uuid", "secret_type", "public_key", "sshPublicKey", "monkey", "key_size", "encryption_key_id", "spwan", "bypass_cache", "compass", "keyboard", "vol_uuid", "vmware_host_username"} {
		if template.IsCredential(name) {
			t.Errorf("%s is taken for a credential", name)
		}
	}
}

func TestNamesAndConnectionFields(t *testing.T) {
	parsed, err := template.Parse(`{{ .nfs.file }} {{ .connection.b }} {{ index .connection "a" }} {{ .connection.b | default .connection.c }}`, template.Use{Protocol: "nfs", Facts: facts()})
	if err != nil {
		t.Fatal(err)
	}
	if !parsed.Names("nfs") || !parsed.Names("connection") || parsed.Names("volume") {
		t.Error("the roots are not those of the template")
	}
	if got, want := parsed.ConnectionFields(), []string{"a", "b", "c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("fields are %v, expected %v", got, want)
	}
}

// FuzzTemplate: any template is either read or refused, and its evaluation
// ends.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"{{ .volume.id }}", "{{ index .connection.nested 0 1 | default 1 }}", "{{ printf \"%04d\" .connection.lun }}", "{{ .connection.medium | split \",\" | join \"-\" | replace \"x\" \"yy\" }}", "{{ .connection.config | json }}"} {
		f.Add(seed, "{{ .connection.auth_password }}")
	}
	tree := values(f)
	f.Fuzz(func(t *testing.T, text, value string) {
		tree["connection"].(map[string]any)["export"] = value
		parsed, err := template.Parse(text, template.Use{Protocol: "nfs", Facts: facts()})
		if err != nil {
			return
		}
		result, err := parsed.Execute(tree)
		if err != nil {
			return
		}
		if len(result) > template.MaxResult || strings.ContainsAny(result, "\x00\n\r") {
			t.Errorf("result is %q", result)
		}
		if strings.Contains(result, "not-a-real-") && !strings.Contains(text+value, "not-a-real-") {
			t.Errorf("%s shows a credential: %q", text, result)
		}
	})
}
