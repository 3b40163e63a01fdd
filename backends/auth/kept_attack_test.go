package auth

import (
	"os"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// TestAnIndentedBundleIsKept: a file of certificates may begin with any text, here
// an indented comment. YAML writes a text whose first line begins with a tab in a
// form that it cannot read. So what is kept looks fine (the gauge is 1) until a
// replica needs it, and finds it damaged.
func TestAnIndentedBundleIsKept(t *testing.T) {
	bundle := "\t# authorities of the data center\n" + authtest.NewAuthority(t).PEM
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": bundle})
	authtest.WriteFile(t, dir+"/clouds.yaml", "clouds: {gold: {cacert: "+dir+"/ca.pem, auth: {auth_url: 'https://one/v3', user_id: u, password: s3cr3t}}}")
	config := Config{Source: Source{Cloud: "gold"}}
	reading, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Reread(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, os.RemoveAll(dir), nil)
	restored, err := Restore(config, reading.Kept())
	if err != nil {
		t.Fatalf("what was kept cannot be restored: %v", err)
	}
	equal(t, restored.Credentials().Version, reading.Credentials().Version)
}
