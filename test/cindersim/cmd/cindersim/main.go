// Command cindersim serves a simulated Keystone and Cinder until it is
// interrupted, for trying a client by hand.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "cindersim:", err)
		os.Exit(1)
	}
}

// run serves until the context ends. It prints the endpoints and a clouds.yaml
// for them.
func run(ctx context.Context, arguments []string, out, problems io.Writer) error {
	options := cindersim.Options{}
	flags := flag.NewFlagSet("cindersim", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&options.ListenHost, "listen", "127.0.0.1", "address to listen on")
	flags.IntVar(&options.NoauthPort, "noauth-port", 8776, "port of Cinder without authentication; 0 picks a free one")
	flags.IntVar(&options.CinderPort, "cinder-port", 8777, "port of Cinder behind Keystone; 0 picks a free one")
	flags.IntVar(&options.KeystonePort, "keystone-port", 5000, "port of Keystone; 0 picks a free one")
	flags.StringVar(&options.MaxMicroversion, "max-microversion", "3.70", "highest microversion that Cinder offers")
	flags.DurationVar(&options.PlacementDelay, "placement-delay", 0, "time until the scheduler has chosen a host")
	flags.DurationVar(&options.CreateDelay, "create-delay", 0, "time from a create to available")
	flags.DurationVar(&options.DeleteDelay, "delete-delay", 0, "time from a delete to gone")
	flags.DurationVar(&options.ExtendDelay, "extend-delay", 0, "time that an extend takes")
	flags.DurationVar(&options.SnapshotDelay, "snapshot-delay", 0, "time that a snapshot takes")
	flags.DurationVar(&options.Latency, "latency", 0, "latency of every request")
	flags.DurationVar(&options.Lag, "lag", 0, "how old the state is that reads show, as behind a Galera cluster")
	flags.DurationVar(&options.Identity.TokenLifetime, "token-lifetime", 0, "validity of a token (default 1h)")
	flags.Uint64Var(&options.Seed, "seed", 0, "seed of ids and credentials; 0 picks one")
	volumes := flags.Int("quota-volumes", -1, "volumes that a project may have; -1 is no limit")
	gigabytes := flags.Int("quota-gigabytes", -1, "GiB that a project may have; -1 is no limit")
	portals := flags.String("portals", "127.0.0.1:3260", "comma-separated portals of the volume type iscsi")
	var users []keystone.User
	var projects []keystone.Project
	flags.Func("user", "`name:password:project` of a user to make instead of the default ones; may be repeated", func(text string) error {
		parts := strings.SplitN(text, ":", 3)
		if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
			return errors.New("want name:password:project")
		}
		users = append(users, keystone.User{Name: parts[0], Password: parts[1], Projects: []string{parts[2]}, Admin: parts[0] == "admin"})
		for _, known := range projects {
			if known.Name == parts[2] {
				return nil
			}
		}
		projects = append(projects, keystone.Project{Name: parts[2]})
		return nil
	})
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	options.Identity.Users, options.Identity.Projects = users, projects
	options.Quota = map[string]int{"volumes": *volumes, "gigabytes": *gigabytes}
	options.Types = drivers.DefaultVolumeTypes()
	options.Types[0].Connection = drivers.ISCSIConnection(strings.Split(*portals, ",")...)

	simulator, err := cindersim.New(options)
	if err != nil {
		return err
	}
	if err := simulator.Start(); err != nil {
		return err
	}
	defer simulator.Close()
	fmt.Fprintf(out, "noauth Cinder:  %s  (token USER:PROJECT with a hexadecimal project, such as admin:%s)\n",
		simulator.NoauthEndpoint(), cindersim.DefaultNoauthProject)
	fmt.Fprintf(out, "Cinder:         %s\nKeystone:       %s\nseed:           %d\n\nclouds.yaml for them:\n\n%s",
		simulator.CinderURL(), simulator.KeystoneURL(), simulator.Seed(), simulator.CloudsYAML())
	<-ctx.Done()
	return nil
}
