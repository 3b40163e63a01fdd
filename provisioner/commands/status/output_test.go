package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// watch prints the answers, of which "" is a failure, until they end.
func watch(t *testing.T, form string, answers ...string) (stdout, stderr string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := &cobra.Command{}
		c.SetContext(ctx)
		var out, failures bytes.Buffer
		c.SetOut(&out)
		c.SetErr(&failures)
		o := output{human: "text", form: form, watch: true}
		err := o.print(c, func() (reply, error) {
			if len(answers) == 0 {
				cancel()
				return reply{}, ctx.Err()
			}
			now := answers[0]
			answers = answers[1:]
			if now == "" {
				return reply{}, errors.New("no replica leads")
			}
			return reply{value: map[string]string{"phase": now}, text: func(w io.Writer) error {
				_, err := fmt.Fprintln(w, now)
				return err
			}}, nil
		})
		if err != nil {
			t.Error(err)
		}
		stdout, stderr = out.String(), failures.String()
	})
	return stdout, stderr
}

// TestWatchSendsProgramsNothingButAnswers: what a program reads is one document after the
// other, whatever happens in between.
func TestWatchSendsProgramsNothingButAnswers(t *testing.T) {
	stdout, stderr := watch(t, "json", "pending", "", "bound")
	var phases []string
	for decoder := json.NewDecoder(strings.NewReader(stdout)); ; {
		var answer map[string]string
		if err := decoder.Decode(&answer); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v:\n%s", err, stdout)
		}
		phases = append(phases, answer["phase"])
	}
	if fmt.Sprint(phases) != "[pending bound]" || stderr != "no replica leads\n" {
		t.Errorf("%v, %q", phases, stderr)
	}
	stdout, _ = watch(t, "yaml", "pending", "", "bound")
	documents := strings.Split(stdout, "---\n")
	if len(documents) != 2 {
		t.Fatalf("%q", stdout)
	}
	for i, want := range []string{"pending", "bound"} {
		var answer map[string]string
		if err := yaml.UnmarshalStrict([]byte(documents[i]), &answer); err != nil || answer["phase"] != want {
			t.Errorf("%v: %q", err, documents[i])
		}
	}
}

// TestTheEndOfAWatchIsNoFailure: the question under way fails because the command ends.
func TestTheEndOfAWatchIsNoFailure(t *testing.T) {
	if stdout, stderr := watch(t, "text", "pending"); stdout != "pending\n" || stderr != "" {
		t.Errorf("%q, %q", stdout, stderr)
	}
}

// TestOutputsForProgramsDoNotReachTheTerminalUnescaped: JSON may have characters that some
// terminals obey.
func TestOutputsForProgramsDoNotReachTheTerminalUnescaped(t *testing.T) {
	const told = "a\u009b31m\u202eb\x7f"
	for _, form := range []string{"json", "yaml"} {
		var b bytes.Buffer
		o := output{human: "text", form: form}
		if err := o.write(&b, reply{value: map[string]string{"message": told}}); err != nil {
			t.Fatal(err)
		}
		var answer map[string]string
		if err := yaml.Unmarshal(b.Bytes(), &answer); err != nil || answer["message"] != told && (form == "json" || answer["message"] != strings.ReplaceAll(told, "\u202e", " ")) {
			t.Errorf("%s: %v, %q", form, err, answer)
		}
		if strings.ContainsAny(b.String(), "\u009b\u202e\x7f") {
			t.Errorf("%s: %q", form, b.String())
		}
	}
}

func TestPasswordInTheAddressIsNotPrinted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer server.Close()
	secret := func(of string) string { return strings.Replace(of, "://", "://operator:hidden@", 1) }
	for _, at := range []string{secret(server.URL), secret("http://127.0.0.1:1"), secret("ftp://127.0.0.1"), secret("http://127.0.0.1:port")} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c := NewStatusCommand()
		c.SetContext(ctx)
		if code, output := runCommand(c, "--url", at); code != 2 || strings.Contains(output, "hidden") {
			t.Errorf("exit code %d: %s", code, output)
		}
	}
}

func TestQuotaPrintsOneLine(t *testing.T) {
	var b bytes.Buffer
	if err := (quotaAnswer{Message: "no\x1b[31m\ntenant"}).write(&b); err != nil || b.String() != "no [31m tenant\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestTemplatesCompareNumbersAsKubectlDoes: kubectl's numbers are whole ones, too.
func TestTemplatesCompareNumbersAsKubectlDoes(t *testing.T) {
	o := output{human: "text", form: `jsonpath={.backends[?(@.failures>1)].name}`}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	value := map[string]any{"backends": []any{map[string]any{"name": "gold", "failures": 2}, map[string]any{"name": "silver", "failures": 0}}}
	if err := o.write(&b, reply{value: value}); err != nil || b.String() != "gold\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}
