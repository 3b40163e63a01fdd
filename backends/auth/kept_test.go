package auth

import (
	"os"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// TestKeptCredentialsNeedNoFile keeps what several files say about a backend, and
// restores it when all of them are gone.
func TestKeptCredentialsNeedNoFile(t *testing.T) {
	_, _, certificate, key := authtest.NewAuthority(t).Issue("client", false)
	dir := authtest.WriteFiles(t, map[string]string{
		"ca.pem": certificate, "cert.pem": certificate, "key.pem": key,
		"clouds-public.yaml": "public-clouds: {p: {verify: false, auth: {auth_url: 'http://one/v3'}}}",
		"secure.yaml":        "clouds: {gold: {auth: {password: \"s3: #cr3t\\t'\"}}, other: {auth: {password: others}}}",
		"old.conf":           "[Global]\nauth-url=http://one/v3\nusername=kube\npassword=s3cr3t\ndomain-name=D\ntenant-id=x\nca-file=$DIR/ca.pem\n",
		"noauth.conf":        "[Global]\ncinder-endpoint=http://host:8776/v2\nusername=kube\n",
	})
	authtest.WriteFile(t, dir+"/clouds.yaml", strings.ReplaceAll(`clouds:
  gold: {profile: p, cacert: $DIR/ca.pem, cert: $DIR/cert.pem, key: $DIR/key.pem, auth: {username: kube, user_domain_name: D, project_id: x},
    regions: [{name: one, values: {auth: {project_id: y}}}, {name: two, values: {auth: {password: second}}}]}
  other: {auth: {auth_url: 'http://one/v3', password: others}}
`, "$DIR", dir))
	conf, err := os.ReadFile(dir + "/old.conf")
	equal(t, err, nil)
	authtest.WriteFile(t, dir+"/old.conf", strings.ReplaceAll(string(conf), "$DIR", dir))
	sources := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}

	kept := map[string]*Reading{}
	configs := map[string]Config{
		"clouds.yaml": {Source: Source{Cloud: "gold"}, Region: "one"},
		"INI":         {Source: Source{CloudConfig: dir + "/old.conf"}, Interface: "internal"},
		"INI, noauth": {Source: Source{CloudConfig: dir + "/noauth.conf"}},
	}
	for name, config := range configs {
		reading, err := sources.Reread(config, nil)
		if err != nil {
			t.Fatal(err)
		}
		kept[name] = reading
	}
	equal(t, os.RemoveAll(dir), nil)
	for name, reading := range kept {
		if _, err := sources.Reread(configs[name], reading); err == nil {
			t.Errorf("%s: the files are not gone", name)
		}
		restored, err := Restore(configs[name], reading.Kept)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		equal(t, restored.Restored, true)
		equal(t, restored.Credentials.Version, reading.Credentials.Version)
		if keystone := reading.Credentials.Keystone; restored.Credentials.Keystone.Password != keystone.Password || len(restored.Credentials.Keystone.Password) == 0 && name != "INI, noauth" {
			t.Errorf("%s: another password was restored", name)
		}
		if text := string(reading.Kept); strings.Contains(text, "others") || strings.Contains(text, "second") || strings.Contains(text, dir) {
			t.Errorf("%s: what the backend does not use was kept, or a path:\n%s", name, text)
		}
		elsewhere := configs[name]
		elsewhere.Region = "three"
		if _, err := Restore(elsewhere, reading.Kept); err != ErrOtherConfig {
			t.Errorf("%s: for another region: %v", name, err)
		}
	}
}

// TestWhatIsInNoFileIsNotKept: the policy has it, or the environment.
func TestWhatIsInNoFileIsNotKept(t *testing.T) {
	variables := map[string]string{"OS_AUTH_URL": "http://one/v3", "OS_USERNAME": "kube", "OS_USER_DOMAIN_NAME": "D", "OS_PASSWORD": "s3cr3t", "OS_PROJECT_ID": "x"}
	for _, source := range []Source{{Environment: true}, {Noauth: &Noauth{Endpoint: "http://host:8776/v3"}}} {
		reading, err := Sources{Getenv: authtest.Environment(variables)}.Reread(Config{Source: source}, nil)
		if err != nil || len(reading.Kept) > 0 {
			t.Errorf("%+v: kept %q, error %v", source, reading.Kept, err)
		}
	}
}

// TestAnIndentedBundleIsKept: a file of certificates may begin with any text, here
// an indented comment.
func TestAnIndentedBundleIsKept(t *testing.T) {
	bundle := "\t# authorities of the data center\n" + authtest.NewAuthority(t).PEM
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": bundle})
	authtest.WriteFile(t, dir+"/clouds.yaml", "clouds: {gold: {cacert: "+dir+"/ca.pem, auth: {auth_url: 'https://one/v3', user_id: u, password: s3cr3t, project_id: x}}}")
	config := Config{Source: Source{Cloud: "gold"}}
	reading, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Reread(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, os.RemoveAll(dir), nil)
	restored, err := Restore(config, reading.Kept)
	if err != nil {
		t.Fatalf("what was kept cannot be restored: %v", err)
	}
	equal(t, restored.Credentials.Version, reading.Credentials.Version)
}

// TestEarlierKeptCredentialsAreUsed: a later release must use what an earlier one
// kept, so the text must not change.
func TestEarlierKeptCredentialsAreUsed(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		text   string
	}{
		"clouds.yaml": {Config{Source: Source{Cloud: "gold"}, Region: "one", Interface: "internal"},
			`{"for": "b1d43deafe624f2cfcf2b185", "cloud": {"auth": {"auth_url": "https://one/v3", "user_id": "u", "password": "s3cr3t"}, "verify": false}}`},
		"INI": {Config{Source: Source{CloudConfig: "/etc/cloud.conf"}},
			`{"for": "f8b14403be14557681c1030b", "noauth": {"Endpoint": "http://host:8776/v3", "User": "u", "Project": "p"}}`},
	} {
		restored, err := Restore(c.config, []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if found := restored.Credentials; c.config.Source.Cloud != "" && (found.Keystone.Password != "s3cr3t" || !found.TLS.InsecureSkipVerify) ||
			c.config.Source.Cloud == "" && *found.Noauth != (Noauth{"http://host:8776/v3", "u", "p"}) {
			t.Errorf("%s: other credentials were restored", name)
		}
	}
}

func TestDamagedKeptCredentialsAreRefusedWithoutQuotingThem(t *testing.T) {
	dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds: {gold: {auth: {auth_url: 'http://one/v3', user_id: u, password: hunter2, project_id: x}}}"})
	config := Config{Source: Source{Cloud: "gold"}}
	reading, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Reread(config, nil)
	equal(t, err, nil)
	good := string(reading.Kept)
	for name, test := range map[string]struct{ text, want string }{
		"empty":        {"", "they are damaged"},
		"no JSON":      {"hunter2: [", "they are damaged"},
		"half":         {good[:len(good)/2], "they are damaged"},
		"another type": {"hunter2", "they are damaged"},
		"both kinds":   {strings.Replace(good, "\"cloud\":", "\"noauth\": {\"Endpoint\": \"http://c\"}, \"cloud\":", 1), "they are damaged"},
		"no password":  {strings.Replace(good, "\"password\": \"hunter2\"", "\"password\": \"\"", 1), "they are unusable: the credentials have no password, application credential or token"},
		"a path":       {strings.Replace(good, "\"cloud\": {", "\"cloud\": {\"cacert\": \"/etc/hunter2\",", 1), "they are damaged: they name a file"},
	} {
		if _, err := Restore(config, []byte(test.text)); authtest.ErrorText(err) != test.want {
			t.Errorf("%s: error %q, want %q", name, authtest.ErrorText(err), test.want)
		}
	}
}
