package proctest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
)

// serves in the environment makes a test binary the process of a Runner.
const serves = "PENSTOCK_TEST_SERVES"

// Result is the output of a command line, and its exit code.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Serve runs the command lines of a Runner, if a Runner has started this process, and exits after the last.
func Serve(run func(args []string, stdout, stderr io.Writer) (code int)) {
	if os.Getenv(serves) == "" {
		return
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var args []string
		if err := in.Decode(&args); err != nil {
			os.Exit(0)
		}
		var stdout, stderr bytes.Buffer
		code := run(args, &stdout, &stderr)
		if err := out.Encode(Result{code, stdout.String(), stderr.String()}); err != nil {
			os.Exit(1)
		}
	}
}

// Runner is a process that runs command lines one after the other: a process for each takes a second.
type Runner struct {
	in  *json.Encoder
	out *json.Decoder
}

// NewRunner starts a test binary that calls Serve, with more variables in its environment. The process
// ends with the test.
func NewRunner(t testing.TB, binary string, variables ...string) *Runner {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(append(os.Environ(), serves+"=1"), variables...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("%s: %v", binary, err)
		}
	})
	return &Runner{json.NewEncoder(in), json.NewDecoder(out)}
}

// Run runs a command line.
func (r *Runner) Run(t testing.TB, args ...string) (result Result) {
	t.Helper()
	if err := errors.Join(r.in.Encode(args), r.out.Decode(&result)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return result
}
