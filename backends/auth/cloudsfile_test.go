package auth

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// FuzzCloudsFiles reads any three files, then two that begin with a secret:
// nothing panics, and no error contains the secret.
func FuzzCloudsFiles(f *testing.F) {
	f.Add("clouds: {gold: {profile: v, auth: {auth_url: http://k}}}", "clouds: {gold: {auth: {password: p}}}", "public-clouds: {v: {regions: [R1]}}", "R1")
	f.Add("clouds: {gold: {regions: [R1, {name: R1, values: {verify: false, auth: }}, {}], auth: }}", "clouds: {gold: }", "", "")
	f.Add("      username: x\n    verify: maybe\n", "     trust_id: y", "public-clouds: [", "R1")
	f.Add("   cert: |\n", "\t: : x", "- &a [*a]", "")
	f.Add("clouds: &c {gold: {<<: *c}}", "? !!binary x", "%YAML 3", "")
	f.Fuzz(func(t *testing.T, clouds, secure, public, region string) {
		const secret = "hunter2hunter2"
		read := func(clouds, secure string) error {
			files := fileSet{"d/clouds.yaml": {text: []byte(clouds)}, "d/secure.yaml": {text: []byte(secure)}, "d/clouds-public.yaml": {text: []byte(public)}}
			for _, name := range []string{"secure.yml", "secure.json", "clouds-public.yml", "clouds-public.json"} {
				files["d/"+name] = fileContent{err: fs.ErrNotExist}
			}
			if public == "" {
				files["d/clouds-public.yaml"] = fileContent{err: fs.ErrNotExist}
			}
			// Only the entry: the next step would read the certificates that it
			// names.
			read, err := Sources{CloudsFile: "d/clouds.yaml", Getenv: authtest.NoEnvironment, files: files}.merged("gold", region)
			if err != nil {
				return err
			}
			cloud, err := read.account()
			if err != nil {
				return err
			}
			_, err = authOptions(cloud.AuthType, *cloud.AuthInfo)
			return err
		}
		_ = read(clouds, secure)
		if strings.Contains(clouds+secure+public+region, "hunter") {
			return
		}
		for _, key := range []string{"password", "token", "application_credential_secret"} {
			before := "clouds:\n  gold:\n    auth:\n      " + key + ": " + secret + "\n"
			if err := read(before+clouds, before+secure); strings.Contains(authtest.ErrorText(err), secret) {
				t.Errorf("error %q contains the %s", err, key)
			}
		}
	})
}
