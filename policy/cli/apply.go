package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// Place is the ConfigMap from which the replicas of an installation read their policy, and
// where they answer.
type Place struct {
	// Kubeconfig and Context select the cluster as kubectl does.
	Kubeconfig, Context       string
	Namespace, ConfigMap, Key string
	// Beside are other ConfigMaps that replicas mount into the same directory.
	Beside []string
	// Selector matches the labels of the replicas' pods.
	Selector string
	// Port is the one at which they serve their status; 0 for the port that each pod
	// calls http.
	Port int
	// Provisioner is the name by which StorageClasses refer to the program.
	Provisioner string
}

func (p Place) String() string { return fmt.Sprintf("ConfigMap %s/%s", p.Namespace, p.ConfigMap) }

// Installation is a running installation of the program.
type Installation interface {
	// Held reads what the ConfigMap holds.
	Held(ctx context.Context) (Held, error)
	// Write gives keys the texts, and removes those without one. It fails if the ConfigMap
	// has changed since it was read. A dry run only asks whether it could.
	Write(ctx context.Context, held Held, texts map[string][]byte, dryRun bool) error
	// Replicas asks every replica.
	Replicas(ctx context.Context) ([]Replica, error)
	// Existing and CSI read what exists in the cluster.
	Existing(ctx context.Context) (review.Existing, error)
	CSI(ctx context.Context) (*review.CSI, error)
}

// Held is what the ConfigMap held when it was read.
type Held struct {
	// UID and Version identify what was read.
	UID, Version string
	// Files are what it has under its keys, sorted by them.
	Files policy.Files
	// Manager is the tool that owns the ConfigMap, as far as its labels tell.
	Manager string
}

// Replica is what a replica says of the policy.
type Replica struct {
	Pod string `json:"pod"`
	// File is where it reads the policy; empty if it does not say so.
	File string `json:"-"`
	// Revision is the one in force.
	Revision string `json:"revision,omitempty"`
	// Refused is the revision that the replica has refused, for the reasons Why.
	Refused string   `json:"refused,omitempty"`
	Why     []string `json:"why,omitempty"`
	// Silent is why the replica did not answer; empty if it did.
	Silent string `json:"silent,omitempty"`
}

// applyOptions are the flags of policy apply.
type applyOptions struct {
	Options
	Place
	output     string
	cloudsFile string
	skipReview bool
	dryRun     bool
	timeout    time.Duration
}

const (
	// applyPause is how often replicas are asked.
	applyPause = 2 * time.Second
	// applyTimeout exceeds the time after which a kubelet has updated the files of its
	// pods: up to one and a half syncFrequency, a minute by default, and as much again if
	// it caches ConfigMaps (k8s.io/kubelet/config/v1beta1).
	applyTimeout = 3 * time.Minute
)

func newApplyCommand(from Options) *cobra.Command {
	options := applyOptions{Options: from}
	cmd := &cobra.Command{
		Use:   "apply FILE|DIRECTORY",
		Short: "Put a policy into force, and wait until every replica runs it",
		Long: `Check FILE as policy check --kubeconfig --against does, show who gains and loses
compared with the policy in the ConfigMap, write it there, and wait until every replica
runs it. FILE may be the manifest of a ConfigMap; - is standard input.

The files of a DIRECTORY become the keys of the ConfigMap, and all other keys go. That
needs replicas whose --policy is a directory. A ConfigMap holds 1 MiB; a policy may have
several in this directory. Apply each alone, with --beside naming all others, which are
checked and compared with it but stay as they are.

The command writes in one request, and only if nobody has changed the ConfigMap since it
was read. If the command is stopped, run it again, and it continues.

Kubelets update the files of their pods within about two minutes. A replica that refuses
the policy keeps the one in force; the command says why.

The command needs the rights to get and patch the ConfigMap, to get those of --beside, to
list pods and to get pods/proxy in the namespace, and without --skip-review those of
policy check.

Exit codes: 0 every replica runs the policy, or could (--dry-run), or it is written
(--timeout 0); 1 the check failed, somebody else changed the ConfigMap, or a replica
refuses the policy or does not run it yet; 2 wrong usage, or an unreadable file or
cluster.`,
		Example: `  standalone-cinder policy apply policy.yaml --dry-run
  standalone-cinder policy apply policy.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("%s needs one FILE, or - for standard input (see %s --help)", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := options.check(); err != nil {
				return err
			}
			if args[0] == "-" && len(options.Beside) > 0 {
				return usageError("--beside needs a file or a directory, not standard input, because its name is the key")
			}
			return options.run(cmd, args[0])
		},
		ValidArgsFunction: completeFile,
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else ~/.kube/config, else the pod's service account")
	flags.StringVar(&options.Context, "context", "", "`name` of the kubeconfig's context")
	flags.StringVarP(&options.Namespace, "namespace", "n", "standalone-cinder", "`namespace` where the program runs")
	flags.StringVar(&options.ConfigMap, "configmap", "standalone-cinder-policy", "`name` of the replicas' ConfigMap")
	flags.StringVar(&options.Key, "key", policy.MountedKey, "`key` of the policy there")
	flags.StringSliceVar(&options.Beside, "beside", nil, "`names` of other ConfigMaps that replicas mount into the same directory")
	flags.StringVar(&options.Selector, "selector", "app.kubernetes.io/name=standalone-cinder,app.kubernetes.io/component=provisioner", "`labels` of the replicas' pods")
	flags.IntVar(&options.Port, "port", 0, "port of the replicas; default is the one that pods call http")
	flags.StringVar(&options.Provisioner, "provisioner-name", from.ProvisionerName, "`name` by which StorageClasses refer to the program")
	flags.StringVar(&options.cloudsFile, "clouds-file", "", "clouds.yaml `file` with credentials to check")
	flags.BoolVar(&options.skipReview, "skip-review", false, "do not check existing claims and volumes")
	flags.BoolVar(&options.dryRun, "dry-run", false, "write nothing, but ask the API server whether it would let you")
	flags.DurationVar(&options.timeout, "timeout", applyTimeout, "`time` to wait")
	outputFlag(cmd, &options.output)
	mustComplete(cmd.MarkFlagFilename("kubeconfig"))
	completeYAML(cmd, "clouds-file")
	for _, free := range []string{"context", "namespace", "configmap", "key", "beside", "selector", "port", "provisioner-name", "timeout"} {
		completeValues(cmd, free)
	}
	return cmd
}

func (o *applyOptions) check() error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	for flag, value := range map[string]string{"namespace": o.Namespace, "configmap": o.ConfigMap, "key": o.Key, "selector": o.Selector, "provisioner-name": o.Provisioner} {
		if value == "" {
			return usageError("--%s is empty", flag)
		}
	}
	if slices.Contains(o.Beside, o.ConfigMap) {
		return usageError("--beside names the ConfigMap to write, %s; name only others", o.ConfigMap)
	}
	// Replicas are only listed once the policy is written.
	if _, err := labels.Parse(o.Selector); err != nil {
		return usageError("--selector is %q; write it as kubectl does, such as app=a,tier=b: %w", o.Selector, err)
	}
	if o.timeout < 0 {
		return usageError("--timeout must not be negative")
	}
	return nil
}

// applied is the output of policy apply.
type applied struct {
	Check report `json:"check"`
	// ConfigMap is NAMESPACE/NAME; Before is the revision that it held.
	ConfigMap string `json:"configMap"`
	Before    string `json:"before,omitempty"`
	// BeforeErrors are the mistakes in what it held, which is then not compared.
	BeforeErrors policy.ErrorList `json:"beforeErrors,omitempty"`
	Changes      []change         `json:"changes,omitempty"`
	effects
	Written  bool      `json:"written"`
	Replicas []Replica `json:"replicas,omitempty"`
}

// applying is one run of the command.
type applying struct {
	applyOptions
	to   Installation
	held Held
	// p is the policy, own are those of its files that the ConfigMap is to have, and beside
	// those that other ConfigMaps have.
	p           *policy.Policy
	own, beside policy.Files
	result      applied
	// told prints progress: as text where the answer is, as JSON it would break it.
	told io.Writer
}

func (o *applyOptions) run(cmd *cobra.Command, file string) error {
	a := &applying{applyOptions: *o, told: cmd.OutOrStdout(), result: applied{ConfigMap: o.Namespace + "/" + o.ConfigMap}}
	p, err := a.readBeside(cmd, file)
	a.result.Check, a.p, err = checked(file, p, err)
	if err != nil {
		return &ExitError{Code: ExitUsage, Err: err}
	}
	if o.output == outputJSON {
		a.told = cmd.ErrOrStderr()
	}
	err = a.steps(cmd)
	if o.output == outputJSON && ExitCode(err) != ExitUsage {
		if failed := writeJSON(cmd.OutOrStdout(), a.result); failed != nil {
			return &ExitError{Code: ExitUsage, Err: fmt.Errorf("write the answer: %w", failed)}
		}
	}
	return err
}

// readBeside reads the policy: the given files, and those in the other ConfigMaps.
func (a *applying) readBeside(cmd *cobra.Command, file string) (*policy.Policy, error) {
	if len(a.Beside) == 0 {
		p, err := readPolicy(file, cmd.InOrStdin(), a.Protocols)
		if err == nil {
			a.own = p.Files()
		}
		return p, err
	}
	var err error
	if a.own, err = policy.ReadFiles(file); err != nil {
		return nil, err
	}
	source := file
	if a.own[0].Name == "" {
		source, a.own[0].Name = filepath.Split(filepath.Clean(file))
	}
	for _, name := range a.Beside {
		place := a.Place
		place.ConfigMap = name
		to, err := a.Connect(place)
		if err != nil {
			return nil, err
		}
		held, err := to.Held(cmd.Context())
		if err != nil {
			return nil, err
		}
		for _, found := range held.Files {
			found.Source = fmt.Sprintf("%s/%s", place, found.Name)
			a.beside = append(a.beside, found)
		}
	}
	all := a.with(a.own)
	for i, found := range all {
		switch at := cmp.Or(found.Source, file); {
		case !policy.IsFileName(found.Name):
			return nil, policy.ErrorList{{Source: at, Message: "replicas refuse a directory with a file whose name does not end in .yaml or .yml; rename it"}}
		case i > 0 && found.Name == all[i-1].Name:
			return nil, policy.ErrorList{{Source: at, Message: fmt.Sprintf("two ConfigMaps would have the key %s, of which replicas see only one; rename the file", found.Name)}}
		}
	}
	return policy.ParseFiles(all, cmp.Or(source, "."), a.Protocols)
}

// with returns what replicas read if the ConfigMap has these files.
func (a *applying) with(files policy.Files) policy.Files {
	all := slices.Concat(files, a.beside)
	slices.SortStableFunc(all, func(a, b policy.File) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// steps takes the steps of the command, and tells each.
func (a *applying) steps(cmd *cobra.Command) error {
	ctx := cmd.Context()
	if a.p != nil && a.cloudsFile != "" && a.Credentials != nil {
		a.result.Check.add(a.p, a.Credentials(a.p, a.cloudsFile))
	}
	if !a.result.Check.Valid {
		return a.tellCheck()
	}
	if err := a.checkFits(); err != nil {
		return err
	}
	var err error
	if a.to, err = a.Connect(a.Place); err != nil {
		return &ExitError{Code: ExitUsage, Err: err}
	}
	if a.held, err = a.to.Held(ctx); err != nil {
		return &ExitError{Code: ExitUsage, Err: err}
	}
	earlier := a.earlier()
	if !a.skipReview {
		if a.result.Check.Review, err = a.reviewed(ctx, earlier); err != nil {
			return err
		}
	}
	if err := a.tellCheck(); err != nil {
		return err
	}
	a.tellChanges(earlier)
	if err := a.checkRead(ctx); err != nil {
		return err
	}
	if err := a.write(ctx); err != nil {
		return err
	}
	if a.timeout == 0 || a.dryRun {
		return nil
	}
	return a.await(ctx)
}

// several reports whether the policy is that of a directory.
func (a *applying) several() bool { return a.own[0].Name != "" }

// checkFits returns an error if the file is the manifest of another ConfigMap, or if the
// files fit into none.
func (a *applying) checkFits() error {
	size := 0
	for _, file := range a.own {
		size += len(file.Text)
	}
	if size > policy.MaxFileSize {
		return &ExitError{Code: ExitFailed, Err: fmt.Errorf("the files of %s have %d bytes, but a ConfigMap holds at most %d; put some into another ConfigMap that replicas mount into the same directory (policy.moreConfigMaps in the chart), and apply each with --beside naming the others",
			a.result.Check.Source, size, policy.MaxFileSize)}
	}
	if a.several() && a.Key != policy.MountedKey {
		return usageError("--key is for one file; the files of a directory are keys by their own names")
	}
	of := a.p.Manifest
	if of.Name == "" || of.Name == a.ConfigMap && (of.Namespace == "" || of.Namespace == a.Namespace) {
		return nil
	}
	return usageError("%s is the manifest of ConfigMap %s, not of %s; give --namespace and --configmap", a.result.Check.Source, strings.TrimPrefix(of.Namespace+"/"+of.Name, "/"), a.Place)
}

// tell prints a line. Parts of it may be text that others wrote.
func (a *applying) tell(format string, args ...any) {
	// The command has more important things to do than to fail because of its progress.
	_, _ = fmt.Fprintln(a.told, oneLine(fmt.Sprintf(format, args...)))
}

// tellCheck prints what the check found, and returns an error if it failed.
func (a *applying) tellCheck() error {
	if a.output != outputJSON {
		if err := writeText(a.told, a.result.Check); err != nil {
			return &ExitError{Code: ExitUsage, Err: fmt.Errorf("write the answer: %w", err)}
		}
	}
	return a.result.Check.outcome(failOnErrors)
}

// read returns what replicas read of a ConfigMap; nil if that is nothing.
func (a *applying) read(held Held) policy.Files {
	if files := a.with(held.Files); a.several() && len(files) > 0 {
		return files
	}
	for _, file := range held.Files {
		if file.Name == a.Key {
			return policy.Files{{Text: file.Text}}
		}
	}
	return nil
}

// earlier parses the policy that the ConfigMap holds; nil if there is none.
func (a *applying) earlier() *policy.Policy {
	held := a.read(a.held)
	if held == nil {
		return nil
	}
	a.result.Before = held.Revision()
	earlier, err := policy.ParseFiles(held, a.Place.String(), a.Protocols)
	if err != nil && !errors.As(err, &a.result.BeforeErrors) {
		a.result.BeforeErrors = policy.ErrorList{{Source: a.Place.String(), Message: err.Error()}}
	}
	return earlier
}

// reviewed reviews the policy as policy check does.
func (a *applying) reviewed(ctx context.Context, earlier *policy.Policy) (*clusterReview, error) {
	o := checkOptions{Options: a.Options, kubeconfig: a.Kubeconfig, cloudsFile: a.cloudsFile}
	o.ProvisionerName = a.Provisioner
	o.ReadCluster = func(ctx context.Context, _, _ string) (review.Existing, error) { return a.to.Existing(ctx) }
	o.ReadCSI = func(ctx context.Context, _ string) (*review.CSI, error) { return a.to.CSI(ctx) }
	found, err := o.reviewSince(ctx, earlier, a.p)
	if err != nil {
		return nil, &ExitError{Code: ExitUsage, Err: fmt.Errorf("%w; --skip-review applies the policy without knowing", err)}
	}
	return found, nil
}

// tellChanges prints what changes.
func (a *applying) tellChanges(earlier *policy.Policy) {
	switch {
	case len(a.held.Files) == 0 && a.several():
		a.tell("%s holds no policy", a.Place)
		return
	case a.result.Before == "":
		var keys []string
		for _, file := range a.held.Files {
			keys = append(keys, file.Name)
		}
		a.tell("%s holds no policy under the key %s; its keys: %s", a.Place, a.Key, cmp.Or(strings.Join(keys, ", "), "none"))
		return
	case earlier == nil:
		a.tell("%s holds a policy with %s, so there is nothing to compare with; the first: %s", a.Place, count(len(a.result.BeforeErrors), "error"), a.result.BeforeErrors[0].Error())
		return
	}
	found := differencesOf(earlier, a.p)
	a.result.Changes, a.result.effects = found.Changes, effectsOf(found.Changes)
	a.tell("")
	a.tell("What changes since revision %s, which %s holds:", a.result.Before, a.Place)
	// As with all progress, a failure to print it stops nothing.
	_ = writeText(a.told, found)
	a.tell("")
	a.result.effects.each(func(line string) { a.tell("%s", line) })
}

// write writes the ConfigMap, or asks whether it could, unless it holds the policy already.
func (a *applying) write(ctx context.Context) error {
	revision := a.p.Revision()
	texts := a.texts()
	if len(texts) == 0 {
		a.tell("%s holds revision %s already", a.Place, revision)
		return nil
	}
	if a.held.Manager != "" {
		a.tell("%s is managed by %s, which will bring its own policy back: give it this one, too", a.Place, a.held.Manager)
	}
	if err := a.to.Write(ctx, a.held, texts, a.dryRun); err != nil {
		return &ExitError{Code: ExitFailed, Err: err}
	}
	if a.dryRun {
		a.tell("%s stays as it is (--dry-run)", a.Place)
		return nil
	}
	a.result.Written = true
	a.tell("%s holds revision %s now (before: %s)", a.Place, revision, cmp.Or(a.result.Before, "none"))
	return nil
}

// texts returns what to write by keys; nil for a key that goes.
func (a *applying) texts() map[string][]byte {
	files := a.own
	if !a.several() {
		files = policy.Files{{Name: a.Key, Text: files[0].Text}}
	}
	texts := map[string][]byte{}
	for _, file := range files {
		texts[file.Name] = file.Text
	}
	for _, held := range a.held.Files {
		switch text, stays := texts[held.Name]; {
		case stays && bytes.Equal(text, held.Text):
			delete(texts, held.Name)
		case !stays && a.several():
			texts[held.Name] = nil
			a.tell("the key %s goes, because %s has no such file", held.Name, a.result.Check.Source)
		}
	}
	return texts
}

// checkRead returns an error if replicas read one key of the ConfigMap but are given
// several, read all keys but are given one beside others, or read another key that is
// there.
func (a *applying) checkRead(ctx context.Context) error {
	holds := func(key string) bool {
		return slices.ContainsFunc(a.held.Files, func(f policy.File) bool { return f.Name == key })
	}
	others := len(a.held.Files) > 1 || len(a.held.Files) == 1 && !holds(a.Key)
	if !a.several() && !others {
		return nil
	}
	replicas, err := a.to.Replicas(ctx)
	if err != nil {
		return nil //nolint:nilerr // Whoever waits for the replicas is told.
	}
	for _, r := range replicas {
		name := path.Base(r.File)
		switch file := name == a.Key || policy.IsFileName(name); {
		case !a.several() && holds(name) && !holds(a.Key):
			return usageError("replica %s reads the key %s of %s, which has no key %s; give --key %s", r.Pod, name, a.Place, a.Key, name)
		case r.File == "" || file != a.several():
		case file:
			return &ExitError{Code: ExitFailed, Err: fmt.Errorf("replica %s reads only the file %s; first run the replicas with its directory as their --policy (policy.directory in the chart)", r.Pod, r.File)}
		case others:
			return &ExitError{Code: ExitFailed, Err: fmt.Errorf("replica %s reads all keys of %s, not only %s; give a directory with all files of the policy", r.Pod, a.Place, a.Key)}
		}
	}
	return nil
}
