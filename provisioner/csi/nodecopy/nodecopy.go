// Package nodecopy copies what is in one volume to another, and compares the two. It runs in
// a pod that has both, for `volume move`; nobody else may use either meanwhile. What was in
// the target is removed first, so a copy that was interrupted is made anew. The source is
// only read.
package nodecopy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Options are the flags of `node copy`.
type Options struct {
	// From and To are two directories, where filesystems are mounted, or two block devices.
	From, To string
	// MiBPerSecond bounds the copy; 0 for no bound.
	MiBPerSecond int
	// ResultFile gets the result; empty for none.
	ResultFile string
	// Log gets a line now and then.
	Log io.Writer
}

// AddFlags binds the options to flags, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.From, "from", wire.CopyFrom, "`path` of the source: a directory, or a block device")
	flags.StringVar(&o.To, "to", wire.CopyTo, "`path` of the target, of which everything is removed first")
	flags.IntVar(&o.MiBPerSecond, "mib-per-second", 0, "most `MiB` that are copied in a second; 0 is no limit")
	flags.StringVar(&o.ResultFile, "result-file", "", "`file` that gets the result, too")
}

// Complete reports every invalid option.
func (o *Options) Complete() error {
	var problems []error
	if o.From == "" || o.To == "" || o.From == o.To {
		problems = append(problems, errors.New("--from and --to must be two paths"))
	}
	if o.MiBPerSecond < 0 {
		problems = append(problems, fmt.Errorf("--mib-per-second is %d; give 0 or more", o.MiBPerSecond))
	}
	return errors.Join(problems...)
}

// chunk is how much is read at once.
const chunk = 1 << 20

// sayEvery is how often the log gets a line.
const sayEvery = 15 * time.Second

// Run copies and compares, and writes what came of it.
func Run(ctx context.Context, o Options) (wire.Copied, error) {
	c := &copier{limit: rate.NewLimiter(rate.Inf, 0)}
	if o.MiBPerSecond > 0 {
		c.limit = rate.NewLimiter(rate.Limit(o.MiBPerSecond<<20), chunk)
	}
	said := make(chan struct{})
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer close(said)
		c.say(ctx, o.Log)
	}()
	err := c.run(ctx, o.From, o.To)
	end()
	<-said
	copied := wire.Copied{Files: c.compared.files.Load(), Bytes: c.compared.bytes.Load()}
	if err != nil {
		copied = wire.Copied{Error: wire.Bounded(err.Error())}
	}
	if o.ResultFile != "" {
		content, problem := json.Marshal(copied)
		if problem == nil {
			problem = os.WriteFile(o.ResultFile, content, 0o600)
		}
		err = errors.Join(err, problem)
	}
	return copied, err
}

// progress is what was done so far.
type progress struct{ files, bytes atomic.Int64 }

// copier makes one copy.
type copier struct {
	limit            *rate.Limiter
	copied, compared progress
	// total is about how many bytes there are to copy, and to compare; 0 if unknown.
	total atomic.Int64
}

// say writes how far the copy is, until it has ended.
func (c *copier) say(ctx context.Context, w io.Writer) {
	if w == nil {
		return
	}
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(sayEvery):
			fmt.Fprintln(w, c.far(time.Since(began)))
		}
	}
}

// far says how far the copy is after some time. To compare takes about as long as to copy.
func (c *copier) far(took time.Duration) string {
	done, all := c.copied.bytes.Load()+c.compared.bytes.Load(), 2*c.total.Load()
	text := fmt.Sprintf("copied %d files with %d MiB, and compared %d files with %d MiB",
		c.copied.files.Load(), c.copied.bytes.Load()>>20, c.compared.files.Load(), c.compared.bytes.Load()>>20)
	if done <= 0 || done >= all {
		return text
	}
	text = fmt.Sprintf("%s: about %d%%", text, done*100/all)
	if done < all/200 {
		return text // too little to tell
	}
	left := time.Duration(float64(took) * float64(all-done) / float64(done))
	return fmt.Sprintf("%s, %s left", text, left.Round(10*time.Second))
}
