package auth

import (
	"maps"
	"strings"
)

// cloudsCase is a set of files that describe the cloud gold.
type cloudsCase struct {
	name string
	// gold is its entry in clouds.yaml, secure its entry in secure.yaml, vendor
	// the profile of that name in clouds-public.yaml.
	gold, secure, vendor string
	files                map[string]string // whole files, by name
	region               string            // the requested region
	environment          map[string]string

	// oracle contains what gophercloud's clientconfig reads differently, by the
	// path of the field; an empty value removes a field and its children.
	oracle map[string]string
	why    string
}

func (c cloudsCase) contents() map[string]string {
	files := map[string]string{}
	for _, file := range []struct{ name, entry, before string }{
		{"clouds.yaml", c.gold, "clouds: {gold: "},
		{"secure.yaml", c.secure, "clouds: {gold: "},
		{"clouds-public.yaml", c.vendor, "public-clouds: {vendor: "},
	} {
		if file.entry != "" {
			// $USER stands for the most common account.
			files[file.name] = file.before + strings.ReplaceAll(file.entry, "$USER", "auth_url: http://k/v3, user_id: u, password: p, project_id: x") + "}\n"
		}
	}
	for name, content := range c.files {
		files[name] = content
	}
	return files
}

// userLogin returns the login of the most common account, for files that this
// package rejects and clientconfig does not.
func userLogin(password string) map[string]string {
	return map[string]string{
		"login": "", "login.identity.methods.0": "password", "login.identity.password.user.id": "u",
		"login.identity.password.user.password": password, "login.scope.project.id": "x",
	}
}

// accepted returns what clientconfig makes of the most common account in files that
// this package rejects as a whole.
func accepted(password string) map[string]string {
	fields := userLogin(password)
	delete(fields, "login")
	maps.Copy(fields, map[string]string{"cloud": "", "cloud.verify": "true", "cloud.auth.auth_url": "http://k/v3", "cloud.auth.user_id": "u",
		"cloud.auth.password": password, "cloud.auth.project_id": "x"})
	return fields
}

// with returns fields with others.
func with(fields, others map[string]string) map[string]string {
	maps.Copy(fields, others)
	return fields
}

var cloudsCases = []cloudsCase{
	// Accounts.
	{name: "password by names", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, user_domain_name: Default, project_name: storage, project_domain_name: Projects}}`},
	{name: "password by ids", gold: `{auth: {$USER}}`},
	{name: "domains by ids", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, user_domain_id: d1, project_name: storage, project_domain_id: d2}}`},
	{name: "one domain for user and project by name", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, domain_name: Default, project_name: storage}}`},
	{name: "one domain for user and project by id", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, domain_id: d1, project_name: storage}}`},
	{name: "default domain", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, default_domain: default, project_name: storage}}`},
	{name: "default domain and the user's domain", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, user_domain_name: Users, project_domain_name: Projects, default_domain: default, project_name: storage}}`},
	{name: "the user's domain alone", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, user_domain_name: Default, project_name: storage}}`,
		oracle: map[string]string{"login": "refused"},
		why:    "a file that names only the user's domain means projects of the same domain"},
	{name: "a user's id and name", gold: `{auth: {auth_url: http://k/v3, user_id: u, username: kube, user_domain_name: Default, password: p, project_id: x}}`,
		oracle: map[string]string{"login": "refused"},
		why:    "gophercloud rejects redundant information; the OpenStack clients use the more precise part"},
	{name: "a domain's id and name", gold: `{auth: {auth_url: http://k/v3, username: kube, user_domain_id: default, user_domain_name: Default, password: p, project_id: x}}`,
		oracle: map[string]string{"login": "refused"},
		why:    "gophercloud rejects redundant information; the OpenStack clients use the more precise part"},
	{name: "a project's id and name", gold: `{auth: {auth_url: http://k/v3, user_id: u, password: p, project_id: x, project_name: storage, project_domain_name: Default}}`},
	{name: "no project", gold: `{auth: {auth_url: http://k/v3, user_id: u, password: p}}`,
		oracle: map[string]string{"login": "", "login.identity.methods.0": "password", "login.identity.password.user.id": "u", "login.identity.password.user.password": "p"},
		why:    "volumes belong to projects; a user's default project may change without anybody seeing it here"},
	{name: "a domain and no project", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, user_domain_name: Default, domain_name: Default}}`,
		oracle: map[string]string{"login": "", "login.identity.methods.0": "password", "login.identity.password.user.name": "kube", "login.identity.password.user.password": "p",
			"login.identity.password.user.domain.name": "Default", "login.scope.domain.name": "Default"},
		why: "volumes belong to projects: a token for a domain is useless"},
	{name: "no domain", gold: `{auth: {auth_url: http://k/v3, username: kube, password: p, project_id: x}}`},
	{name: "no user", gold: `{auth: {auth_url: http://k/v3, password: p, project_id: x}}`},
	{name: "no auth_url", gold: `{auth: {user_id: u, password: p, project_id: x}}`},
	{name: "system scope", gold: `{auth: {auth_url: http://k/v3, user_id: u, password: p, system_scope: all}}`,
		oracle: map[string]string{"login": "", "login.identity.methods.0": "password", "login.identity.password.user.id": "u", "login.identity.password.user.password": "p", "login.scope.system.all": "true"},
		why:    "volumes belong to projects"},
	{name: "trust", gold: `{auth: {auth_url: http://k/v3, user_id: u, password: p, trust_id: t}}`,
		oracle: map[string]string{"cloud.auth.trust_id": "", "login.scope": ""},
		why:    "clientconfig does not support trusts"},
	{name: "address without a version", gold: `{auth: {auth_url: "http://k:5000", user_id: u, password: p, project_id: x}}`},
	{name: "address of v2.0", gold: `{auth: {auth_url: "http://k:5000/v2.0", username: kube, password: p, project_name: storage}}`,
		oracle: map[string]string{"login": "refused"},
		why:    "Keystone no longer serves v2.0; v3 is on the same host"},
	{name: "identity API 2", gold: `{identity_api_version: 2, auth: {auth_url: "http://k:5000", username: kube, password: p, domain_name: Default, project_name: storage}}`,
		oracle: map[string]string{"login": "refused"},
		why:    "Keystone no longer serves v2.0; v3 is on the same host"},
	{name: "may log in again", gold: `{auth: {$USER, allow_reauth: true}}`},

	// Application credentials and tokens.
	{name: "application credential by id", gold: `{auth_type: v3applicationcredential, auth: {auth_url: http://k/v3, application_credential_id: a, application_credential_secret: s}}`},
	{name: "application credential without a type", gold: `{auth: {auth_url: http://k/v3, application_credential_id: a, application_credential_secret: s}}`},
	{name: "application credential by name", gold: `{auth: {auth_url: http://k/v3, application_credential_name: a, application_credential_secret: s, username: kube, user_domain_name: Default}}`},
	{name: "application credential by name and a user's id", gold: `{auth: {auth_url: http://k/v3, application_credential_name: a, application_credential_secret: s, user_id: u}}`},
	{name: "application credential, domain for all", gold: `{auth: {auth_url: http://k/v3, application_credential_name: a, application_credential_secret: s, username: kube, domain_id: d}}`},
	{name: "application credential and password", gold: `{auth: {$USER, application_credential_id: a, application_credential_secret: s}}`,
		oracle: map[string]string{"login.identity": "", "login.identity.methods.0": "password", "login.identity.password.user.id": "u", "login.identity.password.user.password": "p"},
		why:    "the more specific method wins, as with a token"},
	{name: "application credential without a secret", gold: `{auth: {auth_url: http://k/v3, application_credential_id: a}}`},
	{name: "token with a project", gold: `{auth_type: token, auth: {auth_url: http://k/v3, token: t, project_id: x}}`},
	{name: "token of v3", gold: `{auth_type: v3token, auth: {auth_url: http://k/v3, token: t, project_name: storage, project_domain_name: Default}}`},
	{name: "token without a project", gold: `{auth: {auth_url: http://k/v3, token: t}}`,
		oracle: map[string]string{"login": "", "login.identity.methods.0": "token", "login.identity.token.id": "t"},
		why:    "volumes belong to projects"},
	{name: "token and password", gold: `{auth: {$USER, token: t}}`},
	{name: "auth_type password with a token", gold: `{auth_type: password, auth: {$USER, token: t}}`,
		oracle: map[string]string{"login.identity": "", "login.identity.methods.0": "token", "login.identity.token.id": "t"},
		why:    "auth_type chooses"},
	{name: "another type", gold: `{auth_type: v3oidcpassword, auth: {$USER}}`,
		oracle: userLogin("p"),
		why:    "logging in by another method than the configured one hides a mistake"},

	// secure.yaml.
	{name: "secure.yaml has the password", gold: `{auth: {auth_url: http://k/v3, user_id: u, project_id: x}}`, secure: `{auth: {password: p}}`},
	{name: "secure.yaml wins", gold: `{auth: {$USER}}`, secure: `{auth: {password: new}}`},
	{name: "secure.yaml has the whole auth", gold: `{region_name: R}`, secure: `{auth: {$USER}}`},
	{name: "secure.yaml has an empty password", gold: `{auth: {$USER}}`, secure: `{auth: {password: ""}}`,
		oracle: with(userLogin("p"), map[string]string{"cloud.auth.password": "p"}),
		why:    "as in openstacksdk, whoever has a key decides it; an old password in another file is not meant"},
	{name: "secure.yaml has an empty entry", gold: `{auth: {$USER}}`, secure: `{}`},
	{name: "secure.yaml repeats the entry", gold: `{region_name: R, auth: {$USER}}`, secure: `{region_name: R, auth: {$USER}}`},
	{name: "secure.yaml has another cloud", gold: `{auth: {$USER}}`, files: map[string]string{"secure.yaml": "clouds: {other: {auth: {password: wrong}}}\n"}},
	{name: "secure.yaml is empty", gold: `{auth: {$USER}}`, files: map[string]string{"secure.yaml": ""}},
	{name: "secure.yaml is not YAML", gold: `{auth: {$USER}}`, files: map[string]string{"secure.yaml": "clouds: {gold: ["}},
	{name: "secure.yaml has the trust", gold: `{auth: {auth_url: http://k/v3, user_id: u, password: p, trust_id: old}}`, secure: `{auth: {trust_id: t}}`,
		oracle: map[string]string{"cloud.auth.trust_id": "", "login.scope": ""},
		why:    "clientconfig does not support trusts"},
	{name: "secure.yaml has more than auth", gold: `{region_name: R1, interface: public, auth: {$USER}}`, secure: `{region_name: R2, interface: admin, cacert: $DIR/ca.pem}`},
	{name: "secure.yaml has the application credential", gold: `{auth_type: v3applicationcredential, auth: {auth_url: http://k/v3, application_credential_id: a}}`, secure: `{auth: {application_credential_secret: s}}`},
	{name: "secure.yaml has a secret that is not a string", gold: `{auth: {$USER}}`, secure: `{auth: {password: !!binary "aP9p"}}`,
		oracle: accepted("h\ufffdi"),
		why:    "clientconfig merges through JSON, which silently changes the secret"},

	// Profiles.
	{name: "profile", gold: `{profile: vendor, auth: {user_id: u, password: p, project_id: x}}`, vendor: `{region_name: R1, interface: internal, auth: {auth_url: http://vendor/v3}}`},
	{name: "profile by its older key", gold: `{cloud: vendor, auth: {user_id: u, password: p, project_id: x}}`, vendor: `{auth: {auth_url: http://vendor/v3}}`},
	{name: "both keys of a profile", gold: `{cloud: other, profile: vendor, auth: {user_id: u, password: p, project_id: x}}`, vendor: `{auth: {auth_url: http://vendor/v3}}`},
	{name: "the entry wins over its profile", gold: `{profile: vendor, region_name: R2, auth: {$USER}}`, vendor: `{region_name: R1, auth: {auth_url: http://vendor/v3, project_domain_name: Default}}`},
	{name: "an empty value wins over the profile", gold: `{profile: vendor, region_name: "", auth: {user_id: u, password: p, project_id: x, auth_url: ""}}`, vendor: `{region_name: R1, auth: {auth_url: http://vendor/v3}}`,
		oracle: with(userLogin("p"), map[string]string{"cloud.auth.auth_url": "http://vendor/v3", "cloud.region_name": "R1"}),
		why:    "as in openstacksdk, whoever has a key decides it"},
	{name: "secure.yaml, entry and profile", gold: `{profile: vendor, auth: {user_id: u, project_id: x}}`, secure: `{auth: {password: p}}`, vendor: `{auth_type: password, auth: {auth_url: http://vendor/v3, password: old, user_id: old}}`},
	{name: "a profile in secure.yaml", gold: `{auth: {$USER}}`, secure: `{profile: vendor}`, vendor: `{region_name: R1}`,
		oracle: map[string]string{"cloud.region_name": ""},
		why:    "openstacksdk uses it; clientconfig drops it"},
	{name: "unknown profile", gold: `{profile: zinc, auth: {$USER}}`, vendor: `{region_name: R1}`},
	{name: "profile without its file", gold: `{profile: vendor, auth: {$USER}}`},
	{name: "profiles are not YAML", gold: `{profile: vendor, auth: {$USER}}`, files: map[string]string{"clouds-public.yaml": "public-clouds: ["}},
	{name: "profiles are not YAML, and none is named", gold: `{auth: {$USER}}`, files: map[string]string{"clouds-public.yaml": "public-clouds: ["}},
	{name: "the profile's trust", gold: `{profile: vendor, auth: {auth_url: http://k/v3, user_id: u, password: p}}`, vendor: `{auth: {trust_id: t}}`,
		oracle: map[string]string{"cloud.auth.trust_id": "", "login.scope": ""},
		why:    "clientconfig does not support trusts"},

	// Regions.
	{name: "region_name", gold: `{region_name: R1, auth: {$USER}}`},
	{name: "another region than region_name", gold: `{region_name: R1, auth: {$USER}}`, region: "R2"},
	{name: "regions as names", gold: `{regions: [R1, R2], auth: {$USER}}`, region: "R2"},
	{name: "regions as names, none requested", gold: `{regions: [R1, R2], auth: {$USER}}`,
		oracle: map[string]string{"cloud.region_name": ""},
		why:    "the OpenStack clients use the first region of the list"},
	{name: "regions as names and region_name", gold: `{region_name: R2, regions: [R1, R2], auth: {$USER}}`},
	{name: "a region's values", gold: `{regions: [R1, {name: R2, values: {interface: internal, auth: {auth_url: http://r2/v3}}}], auth: {$USER}}`, region: "R2"},
	{name: "another region's values", gold: `{regions: [R1, {name: R2, values: {auth: {auth_url: http://r2/v3}}}], auth: {$USER}}`, region: "R1"},
	{name: "a region that is not listed", gold: `{regions: [R1, {name: R2, values: {auth: {auth_url: http://r2/v3}}}], auth: {$USER}}`, region: "R9"},
	{name: "the values of region_name", gold: `{region_name: R2, regions: [R1, {name: R2, values: {auth: {auth_url: http://r2/v3}}}], auth: {$USER}}`,
		oracle: map[string]string{"cloud.auth.auth_url": "http://k/v3"},
		why:    "the OpenStack clients use the values of region_name"},
	{name: "the first region's values", gold: `{regions: [{name: R1, values: {auth: {auth_url: http://r1/v3}}}, R2], auth: {$USER}}`,
		oracle: map[string]string{"cloud.auth.auth_url": "http://k/v3", "cloud.region_name": ""},
		why:    "the OpenStack clients use the first region of the list and its values"},
	{name: "a region's values name another region", gold: `{regions: [{name: R1, values: {region_name: R7}}], auth: {$USER}}`, region: "R1"},
	{name: "a region without a name", gold: `{regions: [{values: {verify: false, auth: {auth_url: http://r/v3}}}], auth: {$USER}}`,
		oracle: accepted("p"),
		why:    "nobody can ask for it, so its values would be dropped in silence; openstacksdk refuses it, too"},
	{name: "a region of the profile", gold: `{profile: vendor, auth: {$USER}}`, vendor: `{regions: [{name: R1, values: {interface: internal, auth: {auth_url: http://r1/v3}}}]}`, region: "R1"},
	{name: "a region of secure.yaml", gold: `{regions: [R2, R1], auth: {$USER}}`, secure: `{regions: [{name: R1, values: {auth: {password: of-r1}}}]}`, region: "R1"},
	{name: "one region in two files", gold: `{regions: [{name: R1, values: {auth: {auth_url: http://r1/v3, password: old}}}], auth: {$USER}}`, secure: `{regions: [{name: R1, values: {auth: {password: of-r1}}}]}`, region: "R1",
		oracle: map[string]string{"cloud.auth.auth_url": "http://k/v3"},
		why:    "secure.yaml must not hide the region's other values: the password would go to another Keystone"},
	{name: "one region twice in a list", gold: `{regions: [{name: R1, values: {auth: {password: first}}}, {name: R1, values: {auth: {password: second}}}], auth: {$USER}}`, region: "R1"},
	{name: "regions are not a list", gold: `{regions: R1, auth: {$USER}}`},
	{name: "a region's trust", gold: `{regions: [{name: R1, values: {auth: {trust_id: t}}}], auth: {auth_url: http://k/v3, user_id: u, password: p}}`, region: "R1",
		oracle: map[string]string{"cloud.auth.trust_id": "", "login.scope": ""},
		why:    "clientconfig does not support trusts"},

	// Verification, certificates, interfaces.
	{name: "verify false", gold: `{verify: false, auth: {$USER}}`},
	{name: "verify no", gold: `{verify: no, auth: {$USER}}`},
	{name: "verify true", gold: `{verify: true, auth: {$USER}}`},
	{name: "verify empty", gold: `{verify: , auth: {$USER}}`},
	{name: "verify is not a boolean", gold: `{verify: maybe, auth: {$USER}}`},
	{name: "the profile does not verify", gold: `{profile: vendor, auth: {$USER}}`, vendor: `{verify: false}`},
	{name: "the entry verifies, its profile does not", gold: `{profile: vendor, verify: true, auth: {$USER}}`, vendor: `{verify: false}`},
	{name: "the entry does not verify, its profile does", gold: `{profile: vendor, verify: false, auth: {$USER}}`, vendor: `{verify: true}`,
		oracle: map[string]string{"cloud.verify": "true"},
		why:    "the most specific place wins; clientconfig treats false as not set"},
	{name: "secure.yaml does not verify, the entry does", gold: `{verify: true, auth: {$USER}}`, secure: `{verify: false}`,
		oracle: map[string]string{"cloud.verify": "true"},
		why:    "the most specific place wins; clientconfig treats false as not set"},
	{name: "the region does not verify", gold: `{regions: [{name: R1, values: {verify: false}}], auth: {$USER}}`, region: "R1",
		oracle: map[string]string{"cloud.verify": "true"},
		why:    "the most specific place wins; clientconfig treats false as not set"},
	{name: "the region verifies, the entry does not", gold: `{verify: false, regions: [{name: R1, values: {verify: true}}], auth: {$USER}}`, region: "R1"},
	{name: "certificates", gold: `{cacert: $DIR/ca.pem, cert: $DIR/cert.pem, key: $DIR/key.pem, auth: {$USER}}`},
	{name: "the region's certificate", gold: `{cacert: /nowhere, regions: [{name: R1, values: {cacert: $DIR/ca.pem}}], auth: {$USER}}`, region: "R1"},
	{name: "interface", gold: `{interface: internal, auth: {$USER}}`},
	{name: "endpoint_type", gold: `{endpoint_type: internalURL, auth: {$USER}}`},
	{name: "endpoint_type wins over interface", gold: `{interface: admin, endpoint_type: internal, auth: {$USER}}`},
	{name: "the profile's endpoint_type wins over the entry's interface", gold: `{profile: vendor, interface: admin, auth: {$USER}}`, vendor: `{endpoint_type: internal}`},
	{name: "unknown interface", gold: `{interface: intrenal, auth: {$USER}}`,
		oracle: userLogin("p"),
		why:    "an unknown interface is a mistake and does not mean public"},

	// Odd files.
	{name: "no clouds.yaml content", files: map[string]string{"clouds.yaml": ""}},
	{name: "another cloud only", files: map[string]string{"clouds.yaml": "clouds: {zinc: {}, lead: {}}\n"}},
	{name: "null entry", gold: `null`},
	{name: "null auth", gold: `{auth: null}`},
	{name: "null auth in secure.yaml", gold: `{auth: {$USER}}`, secure: `{auth: null}`},
	{name: "unknown keys", gold: `{compute_api_version: 2, networks: [{name: n}], auth: {$USER, passcode: 1}}`,
		oracle: accepted("p"),
		why:    "a key of auth that is not read changes the login; openstacksdk refuses it, too"},
	{name: "scalars stay as they are written", gold: `{region_name: 12, auth: {auth_url: http://k/v3, user_id: 17, password: 3.7, project_id: 1e3}}`, secure: `{volume_api_version: 3.0}`},
	{name: "scalars that other programs write in another way", gold: `{auth: {$USER}}`, secure: `{auth: {password: 0123}}`,
		oracle: accepted("0123"),
		why:    "by YAML 1.1, which openstacksdk reads, 0123 is 83: the operator must say what is meant"},
	{name: "letters that JSON and HTML escape", gold: `{auth: {auth_url: http://k/v3, user_id: "<u&>", project_id: "x\u2028é"}}`, secure: `{auth: {password: "a\"\\\u0007\tß"}}`},
	{name: "blanks around a password", gold: `{auth: {$USER}}`, secure: `{auth: {password: " p "}}`},
	{name: "anchors", files: map[string]string{"clouds.yaml": "base: &base {auth_url: http://k/v3, user_id: u, password: p}\nclouds: {gold: {auth: {<<: *base, project_id: x}}}\n"}},
	{name: "a key twice", gold: `{auth: {$USER, password: q}}`},
	{name: "two documents", files: map[string]string{"clouds.yaml": "clouds: {gold: {auth: {auth_url: http://k/v3, user_id: u, password: p, project_id: x}}}\n---\nclouds: {}\n"}},
	{name: "auth is not a mapping", gold: `{auth: [hunter2]}`},
	{name: "a password is not a scalar", gold: `{auth: {auth_url: http://k/v3, user_id: u, password: [hunter2]}}`},

	// The environment.
	{name: "the environment has a password", gold: `{auth: {auth_url: http://k/v3, user_id: u, project_id: x}}`, environment: map[string]string{"OS_PASSWORD": "foreign"},
		oracle: userLogin("foreign"),
		why:    "a backend must never log in with a mixture of credentials"},
	{name: "the environment has a token", gold: `{auth: {$USER}}`, environment: map[string]string{"OS_TOKEN": "foreign"},
		oracle: map[string]string{"login.identity": "", "login.identity.methods.0": "token", "login.identity.token.id": "foreign"},
		why:    "a backend must never log in with another backend's credentials"},
	{name: "the environment has a region and an interface", gold: `{auth: {$USER}}`, environment: map[string]string{"OS_REGION_NAME": "foreign", "OS_INTERFACE": "admin", "OS_CLOUD": "foreign", "OS_CACERT": "/nowhere"}},
}
