package cinder

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

func TestPlacesHaveOneForm(t *testing.T) {
	for address, want := range map[string]string{
		"http://cinder:8776/v3":                     "http://cinder:8776/v3",
		"http://cinder:8776/v3/":                    "http://cinder:8776/v3",
		"http://cinder:8776/v3/0123456789abcdef":    "http://cinder:8776/v3",
		"http://cinder:8776/v3/AUTH_0123/":          "http://cinder:8776/v3",
		"HTTPS://User:s3cr3t@Cinder.Example:443/v3": "https://cinder.example/v3",
		"http://cinder:80/volume//v3/p":             "http://cinder/volume/v3",
		"http://cinder:443/v3":                      "http://cinder:443/v3",
		"http://[2001:DB8::1]:8776/v3/p?x=y#z":      "http://[2001:db8::1]:8776/v3",
		"http://user:s3cr3t@cinder:port/v3":         "http://cinder:port/v3",
		"":                                          "",
	} {
		equal(t, NewPlace(address, "p1"), Place{want, "p1"})
	}
	equal(t, NewPlace("http://cinder/v3", "p1").String(), "http://cinder/v3 (project p1)")
	equal(t, NewPlace("http://cinder/v3", "").String(), "http://cinder/v3")
}

func TestClientKnowsItsPlace(t *testing.T) {
	t.Run("Keystone: the catalog's endpoint and the token's project", func(t *testing.T) {
		cloud := cindertest.NewCloud(t)
		cloud.Project = "fedcba9876543210"
		client, err := logInFrom(t, cloud.Clouds(cindertest.PasswordCloud), auth.Config{Source: auth.Source{Cloud: "gold"}})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, client.Place(), Place{cloud.URL + "/volume/v3", "fedcba9876543210"})
	})
	for name, test := range map[string]struct {
		noauth auth.Noauth
		want   string
	}{
		"noauth":                             {auth.Noauth{Endpoint: "$URL", Project: "abc"}, "abc"},
		"noauth, the project in the address": {auth.Noauth{Endpoint: "$URL/v3/abc"}, "abc"},
		"noauth, in the address and given":   {auth.Noauth{Endpoint: "$URL/v3/abc", Project: "abc"}, "abc"},
		"noauth, no project, v2 endpoint":    {auth.Noauth{Endpoint: "$URL/v2/"}, "admin"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			test.noauth.Endpoint = withURL(test.noauth.Endpoint, cloud.URL).(string)
			client, err := logInNoauth(t, test.noauth)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, client.Place(), Place{cloud.URL + "/v3", test.want})
		})
	}
}
