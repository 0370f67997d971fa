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

// serves is the environment variable that makes a test binary the process of a Runner.
const serves = "PENSTOCK_TEST_SERVES"

type Result struct {
	Code           int
	Stdout, Stderr string
}

// Serve runs a Runner's command lines and exits after the last. It returns if no Runner has started this
// process.
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

// Runner is a process that runs command lines one after the other, as a new process for each takes a second.
type Runner struct {
	in  *json.Encoder
	out *json.Decoder
}

// NewRunner starts a test binary that calls Serve, with additional environment variables. It ends with the
// test.
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

func (r *Runner) Run(t testing.TB, args ...string) (result Result) {
	t.Helper()
	if err := errors.Join(r.in.Encode(args), r.out.Decode(&result)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return result
}
