package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// The forms of an answer. The form for people has a name of its own.
const (
	outputTable    = "table"
	outputText     = "text"
	outputJSON     = "json"
	outputYAML     = "yaml"
	outputJSONPath = "jsonpath="
)

// watchInterval is the pause between two answers of --watch.
const watchInterval = 2 * time.Second

// output is how a command prints its answers.
type output struct {
	// human is the name of the form for people.
	human string
	form  string
	watch bool
	path  *jsonpath.JSONPath
}

// addFlags adds --output and --watch. human is the name of the form for people.
func (o *output) addFlags(c *cobra.Command, human string) {
	o.human = human
	c.Flags().StringVarP(&o.form, "output", "o", human, "`format` of the output: "+human+", json, yaml, or jsonpath=TEMPLATE")
	c.Flags().BoolVarP(&o.watch, "watch", "w", false, "ask again every two seconds, and print changes")
	if err := c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{human, outputJSON, outputYAML, outputJSONPath}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("status commands: " + err.Error())
	}
}

// check returns a usage error unless the format exists.
func (o *output) check() error {
	template, isPath := strings.CutPrefix(o.form, outputJSONPath)
	switch {
	case isPath:
		o.path = jsonpath.New("output").AllowMissingKeys(true)
		if err := o.path.Parse(template); err != nil {
			return usageError("--output %s: %w", o.form, err)
		}
	case o.form != o.human && o.form != outputJSON && o.form != outputYAML:
		return usageError("--output must be %s, json, yaml or jsonpath=TEMPLATE, not %q", o.human, o.form)
	}
	return nil
}

// reply is one answer of a command.
type reply struct {
	// value is printed for programs, and text for people.
	value any
	text  func(io.Writer) error
	// verdict is the command's error if it prints no other reply.
	verdict error
}

// print writes the command's reply, and with --watch the following ones, until the
// command is canceled.
func (o *output) print(c *cobra.Command, ask func() (reply, error)) error {
	if err := o.check(); err != nil {
		return err
	}
	var last []byte
	for {
		answer, err := ask()
		var now bytes.Buffer
		to, separator := c.OutOrStdout(), ""
		switch {
		case err == nil:
			if err := o.write(&now, answer); err != nil {
				return err
			}
			if o.form == outputYAML && last != nil {
				separator = "---\n"
			}
		case o.watch && c.Context().Err() != nil:
			return nil
		case !o.watch || last == nil:
			return err
		default:
			// The leader may be changing, which is no answer to a program.
			fmt.Fprintln(&now, err)
			if o.form != o.human {
				to = c.ErrOrStderr()
			}
		}
		if !bytes.Equal(now.Bytes(), last) {
			if _, err := io.WriteString(to, separator+now.String()); err != nil {
				return usageError("write the answer: %w", err)
			}
			last = now.Bytes()
		}
		if !o.watch {
			return answer.verdict
		}
		select {
		case <-c.Context().Done():
			return answer.verdict
		case <-time.After(watchInterval):
		}
	}
}

func (o *output) write(w io.Writer, answer reply) error {
	switch {
	case o.form == o.human:
		return answer.text(w)
	case o.path != nil:
		return o.writePath(w, answer.value)
	}
	written, err := marshal(answer.value)
	if err == nil && o.form == outputYAML {
		if written, err = yaml.JSONToYAML(written); err == nil {
			// YAML has no escapes for them outside quotes.
			written = bytes.Map(func(r rune) rune {
				if unicode.Is(unicode.Bidi_Control, r) {
					return ' '
				}
				return r
			}, written)
		}
	}
	if err != nil {
		return err
	}
	_, err = w.Write(written)
	return err
}

// marshal returns JSON with escapes for all characters that a terminal could obey, and
// that YAML does not allow. Anybody may have written the values.
func marshal(value any) ([]byte, error) {
	var plain, escaped bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	for _, r := range plain.String() {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.Bytes(), nil
}

// writePath writes the parts of the value that the template selects, by their names in
// JSON.
func (o *output) writePath(w io.Writer, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var fields any
	if err := kubejson.Unmarshal(encoded, &fields); err != nil {
		return err
	}
	var selected strings.Builder
	if err := o.path.Execute(&selected, fields); err != nil {
		return usageError("--output %s: %w", o.form, err)
	}
	// Anybody may have written the values; the line ends are the template's.
	for line := range strings.SplitSeq(selected.String(), "\n") {
		if _, err := fmt.Fprintln(w, statusreport.OneLine(line)); err != nil {
			return err
		}
	}
	return nil
}
