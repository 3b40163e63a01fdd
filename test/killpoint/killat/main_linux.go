// Command killat stands for a program of a machine that is to be killed at a point of its
// run. It reads the point, a number of stops, from a file, and writes to another how far
// the program came: the stops, and whether it ended.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/killpoint"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) < 3 {
		return fmt.Errorf("usage: killat POINT-FILE RESULT-FILE PROGRAM [ARGUMENT...]")
	}
	content, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	stops, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return err
	}
	stopped, ended, err := killpoint.Run(stops, arguments[2], arguments[3:]...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(arguments[1], fmt.Appendf(nil, "%d %t\n", stopped, ended), 0o600); err != nil || ended {
		return err
	}
	return fmt.Errorf("%s was killed after %d stops", arguments[2], stopped)
}
