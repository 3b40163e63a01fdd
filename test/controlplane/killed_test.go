package controlplane

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// foregroundVariable makes the test's binary start a control plane instead of
// running tests, print the components' process ids on one line and wait to be
// killed. Its value is the state directory.
const foregroundVariable = "CONTROLPLANE_TEST_FOREGROUND"

func TestMain(m *testing.M) {
	if dir := os.Getenv(foregroundVariable); dir != "" {
		os.Exit(foreground(dir))
	}
	os.Exit(m.Run())
}

func foreground(dir string) int {
	plane, err := Start(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var pids []string
	for _, p := range plane.processes {
		pids = append(pids, fmt.Sprint(p.command.Process.Pid))
	}
	fmt.Println(strings.Join(pids, " "))
	// An empty select would be taken for a deadlock.
	time.Sleep(time.Hour)
	return 1
}

func TestNothingOutlivesATestThatIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane, and builds it the first time")
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program)
	command.Env = append(os.Environ(), foregroundVariable+"="+t.TempDir())
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(output).ReadString('\n')
	if err := command.Process.Kill(); err != nil {
		t.Error(err)
	}
	// Wait reports the kill as an error.
	waitErr := command.Wait()
	if readErr != nil {
		t.Fatalf("read process ids: %v; the program: %v", readErr, waitErr)
	}
	pids := strings.Fields(line)
	if len(pids) != 3 {
		t.Errorf("got process ids %q, want three", line)
	}
	for _, pid := range pids {
		waitEnded(t, pid)
	}
}
