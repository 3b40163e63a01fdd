package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

func newDiffCommand(options Options) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show what changes between two policy files",
		Long: `Show what NEW grants, bounds and sets in another way than OLD, whatever the files
look like: defaults are inherited, backends and tenants are told apart by their
names, rules by their StorageClasses. No cluster is needed; policy check
--kubeconfig FILE --against OLD says what the change does to its claims.

Both may be directories, or manifests of ConfigMaps; one may be - for standard input.

Exit codes: 0 nothing changes; 1 something does; 2 wrong usage, a file that cannot
be read, or errors in one of them.`,
		Example: "  standalone-cinder policy diff current.yaml new.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError("%s needs two policy files, not %d", cmd.CommandPath(), len(args))
			}
			if err := checkStdin(args...); err != nil {
				return err
			}
			return checkOutput(output)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var compared [2]*policy.Policy
			for i, file := range args {
				var err error
				if compared[i], err = readPolicy(file, cmd.InOrStdin(), options.Protocols); err != nil {
					return reportMistakes(cmd, output, file, err, ExitUsage)
				}
			}
			found := differencesOf(compared[0], compared[1])
			if err := answer(cmd, output, found); err != nil || len(found.Changes) == 0 {
				return err
			}
			return &ExitError{Code: ExitFailed, Err: errors.New(count(len(found.Changes), "change"))}
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return yamlExtensions, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// differences are what changes between two policies.
type differences struct {
	From    policyIdentity `json:"from"`
	To      policyIdentity `json:"to"`
	Changes []change       `json:"changes"`
}

// change is one value that is added, removed or replaced. Path names the elements of
// lists, such as tenants[team-a].quota.volumes.
type change struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

func (d differences) text(w *textWriter) {
	for _, c := range d.Changes {
		c.Path, c.Before, c.After = oneLine(c.Path), oneLine(c.Before), oneLine(c.After)
		switch {
		case c.Before == "":
			w.line("+ %s: %s", c.Path, c.After)
		case c.After == "":
			w.line("- %s: %s", c.Path, c.Before)
		default:
			w.line("~ %s: %s -> %s", c.Path, c.Before, c.After)
		}
	}
	if len(d.Changes) == 0 {
		w.line("nothing changes")
	}
}

// differencesOf compares all values of two policies. Backends inherit from the defaults,
// as tenants do, so the defaults themselves change nothing.
func differencesOf(from, to *policy.Policy) differences {
	before, after := values{}, values{}
	for p, into := range map[*policy.Policy]values{from: before, to: after} {
		plain := *p
		plain.Defaults = policy.Defaults{}
		into.add("", reflect.ValueOf(plain))
	}
	found := differences{From: policyIdentity{from.Source, from.Revision()}, To: policyIdentity{to.Source, to.Revision()}, Changes: []change{}}
	paths := slices.Collect(maps.Keys(before))
	for path := range after {
		if _, has := before[path]; !has {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	for _, path := range paths {
		if before[path] != after[path] {
			found.Changes = append(found.Changes, change{path, before[path], after[path]})
		}
	}
	return found
}

// values are the texts of a policy's values by their paths. A value that is not set has
// none.
type values map[string]string

func (v values) add(path string, value reflect.Value) {
	if !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		return
	}
	switch known := value.Interface().(type) {
	case *metav1.LabelSelector:
		v[path] = metav1.FormatLabelSelector(known)
		if len(known.MatchLabels)+len(known.MatchExpressions) == 0 {
			v[path] = "every namespace"
		}
		return
	case time.Duration:
		if known != 0 {
			v[path] = known.String()
		}
		return
	case *policy.Size:
		v[path] = known.String()
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		if value.Elem().Kind() == reflect.Struct {
			v.add(path, value.Elem())
		} else {
			v[path] = fmt.Sprint(value.Elem().Interface()) // 0 is a bound, too
		}
	case reflect.Struct:
		for i := range value.NumField() {
			field := value.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.IsExported() && name != "-" {
				v.add(strings.TrimPrefix(path+"."+cmp.Or(name, field.Name), "."), value.Field(i))
			}
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			v.add(fmt.Sprintf("%s[%s]", path, key), value.MapIndex(key))
		}
	case reflect.Slice:
		v.addList(path, value)
	default:
		if !value.IsZero() {
			v[path] = fmt.Sprint(value.Interface())
		}
	}
}

// addList adds a list. Where its order matters, or might, it is one value.
func (v values) addList(path string, list reflect.Value) {
	switch {
	case list.Len() == 0:
	case list.Type().Elem().Kind() != reflect.Struct && (strings.HasSuffix(path, ".namespaces") || strings.HasSuffix(path, ".names")):
		for i := range list.Len() {
			v[fmt.Sprintf("%s[%v]", path, list.Index(i))] = "listed"
		}
	case list.Type().Elem().Kind() != reflect.Struct:
		v[path] = fmt.Sprint(list.Interface())
	default:
		keys := make([]string, list.Len())
		for i := range list.Len() {
			keys[i] = keyOf(list.Index(i))
			if n := len(slices.DeleteFunc(slices.Clone(keys[:i]), func(k string) bool { return k != keys[i] })); n > 0 {
				keys[i] += fmt.Sprintf(" %d", n+1)
			}
			v.add(fmt.Sprintf("%s[%s]", path, keys[i]), list.Index(i))
		}
		if strings.HasSuffix(path, ".classes") && len(keys) > 1 {
			v[path+" in their order"] = strings.Join(keys, "; ") // the first that matches decides
		}
	}
}

// keyOf tells the elements of a list apart.
func keyOf(element reflect.Value) string {
	switch known := element.Interface().(type) {
	case policy.Class:
		return strings.Join(known.StorageClasses, ", ")
	default:
		return fmt.Sprint(element.Field(0).Interface())
	}
}
