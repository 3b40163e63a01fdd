package auth

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// The table of this test is generated: every key that openstacksdk or keystoneauth
// knows, in each spelling, at each place of the files, with a value of each type that
// YAML has. The keys and what openstacksdk makes of each case are recorded in
// cloudsKeys, and compared with the installed openstacksdk where there is one (Debian:
// python3-openstacksdk). -update records them anew.
const (
	cloudsKeys   = "testdata/cloudskeys.json"
	openstackSDK = "testdata/openstacksdk.py"
)

// keyRecord is what openstacksdk says.
type keyRecord struct {
	Version string `json:"version"`
	// Words are all that its sources use like a key, Keys those that have an effect.
	Words []string `json:"words"`
	Keys  []string `json:"keys"`
	// Outcomes are the distinct results; the first is that of the files without the
	// key.
	Outcomes []json.RawMessage `json:"outcomes"`
	// Cases has the results of the cases, as runs of "number of an outcome*length".
	Cases string `json:"cases"`
}

// keyCase is a set of files.
type keyCase struct {
	Files       map[string]string `json:"files,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Region      string            `json:"region,omitempty"`

	key, place string
}

// keyOutcome is what a case leads to.
type keyOutcome struct {
	At        string         `json:"at"`
	Login     any            `json:"login"`
	Region    string         `json:"region"`
	Interface string         `json:"interface"`
	Endpoint  string         `json:"endpoint"`
	Type      string         `json:"type"`
	Name      string         `json:"name"`
	Verify    bool           `json:"verify"`
	CA        string         `json:"ca"`
	Cert      string         `json:"cert"`
	Key       string         `json:"key"`
	Disabled  bool           `json:"disabled"`
	Tuning    map[string]any `json:"tuning"`
}

const refusedOutcome = `"refused"`

// keyValues are the values of a key, by the types that YAML 1.1 has.
var keyValues = []string{
	`other`, `internal`, `https://other/v3`, `/ca.pem`, `"false"`, `"True"`, `""`, `"1"`, `R1,R2`, `"{region_name}"`, `https://k2/v3/%(project_id)s`,
	`1`, `0`, `0123`, `0x1F`, `1_000`, `12:30:45`, `3.7`, `3.70`, `1e3`, `.5`, `yes`, `off`, `true`, `False`, `~`, ``, `2026-01-02`, `2026-01-02 03:04:05`,
	`!!str 12`, `!!binary b3RoZXI=`, `[other]`, `[R1, R2]`, `{other: other}`, `=`, `v3password`, `token`, `"none"`,
}

// keyBase is the account to which the key is added, and from which one other key may
// be missing.
var keyBase = []string{"auth_url: https://k/v3", "username: u", "password: p", "user_domain_name: D", "project_name: s", "project_domain_name: E"}

// keyCases generates the table.
func keyCases(keys []string) []keyCase {
	cases := []keyCase{keyFiles("", "", "", "", -1)}
	for _, key := range keys {
		if key == "clouds" {
			continue
		}
		spellings := slices.Compact([]string{key, strings.ReplaceAll(key, "_", "-")})
		for i, spelling := range spellings {
			values := keyValues
			if i > 0 {
				values = []string{"other", "internal", "yes", "0123", "~"}
			}
			for _, place := range []string{"top", "auth"} {
				for _, value := range values {
					cases = append(cases, keyFiles(spelling, value, place, "", -1))
				}
				for _, value := range keyValues[:3] {
					for missing := range keyBase {
						cases = append(cases, keyFiles(spelling, value, place, "", missing))
					}
				}
			}
			for _, file := range []string{"region", "secure", "profile"} {
				for _, place := range []string{"top", "auth"} {
					for _, value := range []string{"other", "internal", "https://other/v3", "yes", "0123", "~", `""`}[:7-4*i] {
						cases = append(cases, keyFiles(spelling, value, place, file, -1))
					}
				}
			}
		}
		for _, value := range []string{"other", "internal", "https://other/v3", "True", "false", "1"} {
			c := keyCase{Environment: map[string]string{}, key: key, place: "environment"}
			for _, line := range keyBase {
				name, value, _ := strings.Cut(line, ": ")
				c.Environment["OS_"+strings.ToUpper(name)] = value
			}
			c.Environment["OS_"+strings.ToUpper(key)] = value
			cases = append(cases, c)
		}
	}
	return cases
}

// keyFiles writes the files of a case: the key in the entry itself, or in another
// place that its settings come from.
func keyFiles(key, value, place, file string, missing int) keyCase {
	account := slices.Clone(keyBase)
	if missing >= 0 {
		account = slices.Delete(account, missing, missing+1)
	}
	entry := func(account []string, with bool) string {
		top := ""
		if with && place == "top" {
			top = ", " + key + ": " + value
		}
		if with && place == "auth" {
			// As in a file, where a key is given once.
			account = slices.DeleteFunc(slices.Clone(account), func(line string) bool { return strings.HasPrefix(line, key+": ") })
			account = append(account, key+": "+value)
		}
		return "auth: {" + strings.Join(account, ", ") + "}" + top
	}
	c := keyCase{Files: map[string]string{}, key: key, place: strings.TrimSpace(file + " " + place)}
	regions, profile := "", ""
	switch file {
	case "region":
		c.Region = "R1"
		regions = ", regions: [{name: R1, values: {" + entry(nil, true) + "}}]"
	case "secure":
		c.Files["secure.yaml"] = "clouds: {gold: {" + entry(nil, true) + "}}\n"
	case "profile":
		c.Files["clouds-public.yaml"] = "public-clouds: {vendor: {" + entry(nil, true) + "}}\n"
		if key != "profile" {
			profile = ", profile: vendor"
		}
	}
	c.Files["clouds.yaml"] = "clouds: {gold: {" + entry(account, file == "") + regions + profile + "}}\n"
	return c
}

// ask runs openstacksdk.
func ask(t *testing.T, cases []keyCase, arguments ...string) (answers []string) {
	t.Helper()
	arguments = append([]string{openstackSDK}, arguments...)
	var input bytes.Buffer
	encoder := json.NewEncoder(&input)
	for _, c := range cases {
		if err := encoder.Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "/usr/bin/python3", arguments...)
	command.Stdin, command.Stderr = &input, os.Stderr
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		answers = append(answers, lines.Text())
	}
	return answers
}

// recordKeys asks openstacksdk about all cases. To find the keys takes a minute, and
// they change only with its sources' words.
func recordKeys(t *testing.T, before keyRecord, anew bool) keyRecord {
	t.Helper()
	var record keyRecord
	if err := json.Unmarshal([]byte(ask(t, nil)[0]), &record); err != nil {
		t.Fatal(err)
	}
	record.Keys = before.Keys
	if anew {
		record.Keys = nil
		if err := json.Unmarshal([]byte(ask(t, nil, "keys")[0]), &record.Keys); err != nil {
			t.Fatal(err)
		}
	}
	number := map[string]int{}
	last, length := -1, 0
	var runs []string
	end := func() {
		if length == 1 {
			runs = append(runs, fmt.Sprint(last))
		} else if length > 1 {
			runs = append(runs, fmt.Sprintf("%d*%d", last, length))
		}
	}
	for _, answer := range ask(t, keyCases(record.Keys), "read") {
		if _, ok := number[answer]; !ok {
			number[answer] = len(record.Outcomes)
			record.Outcomes = append(record.Outcomes, json.RawMessage(answer))
		}
		if number[answer] != last {
			end()
			last, length = number[answer], 0
		}
		length++
	}
	end()
	record.Cases = strings.Join(runs, " ")
	return record
}

// outcomes returns the recorded outcome of each case.
func (r keyRecord) outcomes(t *testing.T) (all []string) {
	t.Helper()
	for _, run := range strings.Fields(r.Cases) {
		number, length := 0, 1
		if _, err := fmt.Sscanf(run, "%d*%d", &number, &length); err != nil && !strings.Contains(err.Error(), "EOF") {
			t.Fatal(err)
		}
		for range length {
			all = append(all, string(r.Outcomes[number]))
		}
	}
	return all
}

// TestEveryKeyOfOpenstackSDKIsHonoredOrRefused compares every case with openstacksdk.
// A difference that is neither refused nor reported must have a reason in
// differentOnPurpose.
func TestEveryKeyOfOpenstackSDKIsHonoredOrRefused(t *testing.T) {
	t.Parallel()
	var record keyRecord
	content, err := os.ReadFile(cloudsKeys)
	if err == nil {
		err = json.Unmarshal(content, &record)
	}
	if err != nil && !*updateReadings {
		t.Fatal(err)
	}
	// With -short, what was recorded is enough.
	if installed := !testing.Short() && exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "import openstack").Run() == nil; installed || *updateReadings {
		now := recordKeys(t, record, *updateReadings)
		encoded, err := json.Marshal(now)
		if err != nil {
			t.Fatal(err)
		}
		encoded = append(bytes.ReplaceAll(encoded, []byte(`,{"at"`), []byte(",\n{\"at\"")), '\n')
		if *updateReadings {
			if err := os.WriteFile(cloudsKeys, encoded, 0o644); err != nil {
				t.Fatal(err)
			}
			record = now
		} else if now.Version == record.Version && !bytes.Equal(encoded, content) {
			t.Errorf("openstacksdk does not read the cases as %s says; go test -update records them anew", cloudsKeys)
		}
	}
	cases, outcomes := keyCases(record.Keys), record.outcomes(t)
	if len(cases) != len(outcomes) {
		t.Fatalf("%d cases and %d outcomes; go test -update records them anew", len(cases), len(outcomes))
	}
	known := knownKeys()
	honored, refused, wrong := map[string]bool{}, map[string]string{}, map[string]int{}
	for i, c := range cases {
		var ours string
		theirs, reported := outcomes[i], false
		found, err := readKeyCase(c)
		if err != nil {
			ours = refusedOutcome
		} else {
			ours, reported = found.outcome(t, c)
		}
		switch {
		case sameOutcome(t, ours, theirs, reported):
			if theirs != outcomes[0] && theirs != refusedOutcome {
				honored[c.key+" in "+c.place] = true
			}
		case ours == refusedOutcome:
			refused[c.key+" in "+c.place] = err.Error()
		case theirs == refusedOutcome && (!strings.HasSuffix(c.place, "auth") || slices.Contains(known, strings.ReplaceAll(c.key, "-", "_"))): // there is nothing to be dropped
		case differentOnPurpose(c, outcomes[0], theirs) != "":
		default:
			if wrong[c.key+" in "+c.place]++; wrong[c.key+" in "+c.place] == 1 {
				t.Errorf("%s in %s:\n%v%v\nis read as   %s\nopenstacksdk %s", c.key, c.place, c.Files, c.Environment, ours, theirs)
			}
		}
	}
	var never []string
	for _, key := range record.Keys {
		is := func(where string) bool { return strings.HasPrefix(where, key+" in ") }
		if why := slices.IndexFunc(slices.Sorted(maps.Keys(refused)), is); why >= 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(honored)), is) {
			never = append(never, key)
		}
	}
	equal(t, never, neverHonored)
	t.Logf("%d cases of %d keys compared with openstacksdk %s; %d keys and places have an effect", len(cases), len(record.Keys), record.Version, len(honored))
}

// neverHonored are the keys with an effect that are refused whatever their value.
var neverHonored = []string{"auth"}

// differentOnPurpose returns why a case may be read otherwise than by openstacksdk.
func differentOnPurpose(c keyCase, base, theirs string) string {
	switch text := fmt.Sprint(c.Files, c.Environment); {
	case strings.Contains(c.key, "-") && strings.Replace(theirs, `"region":"R1"`, `"region":""`, 1) == base:
		return "it drops this spelling; whoever wrote it meant the key"
	case strings.Contains(theirs, `"None"`) && strings.Contains(text, c.key+": "):
		return "of nothing it makes a project or domain that is called None"
	case strings.Contains(theirs, `"interface":""`), strings.Contains(theirs, `"type":""`):
		return "nothing is not any interface or service, but the default"
	case strings.Contains(theirs, `"region":""`) && c.Region != "" && strings.Contains(text, `: ""`):
		return "nothing is not any region, but the requested one"
	case strings.EqualFold(c.key, "insecure"):
		return "it takes 1 and yes for false"
	}
	return ""
}

// sameOutcome compares two outcomes. What only chooses a version or a pace may differ
// if it is reported.
func sameOutcome(t *testing.T, ours, theirs string, reported bool) bool {
	t.Helper()
	if ours == refusedOutcome || theirs == refusedOutcome {
		return ours == theirs
	}
	var a, b keyOutcome
	for text, into := range map[string]*keyOutcome{ours: &a, theirs: &b} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	if reported {
		a.Tuning = b.Tuning
	}
	return reflect.DeepEqual(a, b)
}

// keyReading is what the product makes of a case.
type keyReading struct {
	account  account
	found    Credentials
	reported []string
}

func readKeyCase(c keyCase) (keyReading, error) {
	files := fileSet{}
	for _, suffix := range suffixes {
		for _, name := range []string{"secure", "clouds-public"} {
			files["d/"+name+suffix] = fileContent{err: os.ErrNotExist}
		}
	}
	for name, content := range c.Files {
		files["d/"+name] = fileContent{text: []byte(content)}
	}
	sources := Sources{CloudsFile: "d/clouds.yaml", Getenv: authtest.Environment(c.Environment), files: files}
	read, err := sources.environment("")
	if c.Environment == nil {
		read, err = sources.merged("gold", c.Region)
	}
	if err != nil {
		return keyReading{}, err
	}
	cloud, err := read.account()
	if err != nil {
		return keyReading{}, err
	}
	reading := keyReading{account: cloud, reported: read.withoutEffect()}
	// The certificates that it names do not exist.
	without := reading.account
	without.CACertFile, without.ClientCertFile, without.ClientKeyFile = "", "", ""
	if reading.account.ClientCertFile == "" && reading.account.ClientKeyFile != "" {
		without.ClientKeyFile = reading.account.ClientKeyFile
	}
	reading.found, err = files.keystoneCredentials(Config{Region: c.Region}, without)
	return reading, err
}

func (r keyReading) outcome(t *testing.T, c keyCase) (text string, reported bool) {
	t.Helper()
	found := keyOutcome{
		At:    r.found.Keystone.IdentityEndpoint + "auth/tokens",
		Login: loginBody(t, r.found.Keystone), Region: r.found.Endpoint.Region, Interface: string(r.found.Endpoint.Availability),
		Endpoint: r.found.Override, Type: r.found.Endpoint.Type, Name: r.found.Endpoint.Name,
		Verify: !r.found.TLS.InsecureSkipVerify, Cert: r.account.ClientCertFile, Key: r.account.ClientKeyFile,
		Tuning: map[string]any{},
	}
	if found.Verify {
		found.CA = r.account.CACertFile
	}
	if found.Type == "" {
		found.Type = "block-storage"
	}
	encoded, err := json.Marshal(found)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded), len(r.reported) > 0
}
