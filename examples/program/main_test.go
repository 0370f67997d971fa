package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asProgram in the environment makes this test binary the program. Launch starts it with the same variables.
const asProgram = "PENSTOCK_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// run runs a command line of the program, which must exit with the code, and returns its output.
func run(t *testing.T, code int, args ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// A model and a data set of one's own have all verbs: the run that is resumed has the weights of a run
// without a break, in one process and in two.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	spirals := []string{"train", "--model", "spirals", "--data", "spirals", "--batch", "64", "--chunks", "2",
		"--threads", "1", "--balance", "2,3", "--set", "width=16", "--format", "json", "--steps"}
	with := func(more ...string) []string { return append(spirals[:len(spirals):len(spirals)], more...) }
	hash := func(text string) string {
		_, text, _ = strings.Cut(text, `"params_sha256":"`)
		return text[:min(len(text), 64)]
	}
	want := hash(run(t, 0, with("4")...))
	run(t, 0, with("2", "--out", out)...)
	if got := hash(run(t, 0, with("4", "--out", out, "--resume", "--dashboard",
		":0")...)); len(want) != 64 || got != want {
		t.Errorf("a resumed run has the weights %q, one without a break %q", got, want)
	}
	two := run(t, 0, append([]string{"launch", "--processes", "2", "--"}, with("4")...)...)
	if got := hash(two); got != want {
		t.Errorf("in two processes the weights are %q, in one %q", got, want)
	}

	point := filepath.Join(dir, "point.npy")
	header := "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
	header += strings.Repeat(" ", 117-len(header)) + "\n"
	text := append([]byte("\x93NUMPY\x01\x00v\x00"), header...)
	text, _ = binary.Append(text, binary.LittleEndian, []float32{0.5, 0.25})
	if err := os.WriteFile(point, text, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, run(t, 0, "predict", out, point, "--top", "1"), `"classes":[{"class":`)
	says(t, run(t, 0, "eval", out), "240 samples of spirals (test)", "accuracy")
	says(t, run(t, 0, "report", out, "--out", filepath.Join(dir, "run.html")), "spirals on spirals: 4 steps")
	says(t, run(t, 0, "checkpoint", "inspect", out), `"name": "spirals"`)
	plan := filepath.Join(dir, "plan.json")
	says(t, run(t, 0, "plan", "--model", "spirals", "--data", "spirals", "--batch", "64", "--devices", "2",
		"--repeats", "1",
		"--out", plan), "SCHEDULE", "--balance")
	run(t, 0, "train", "--plan", plan, "--steps", "1")
	says(t, run(t, 0, "profile", "--model", "spirals", "--batch", "8", "--repeats", "1"),
		"spirals on 8 samples of [2]")
	says(t, run(t, 0, "models", "spirals"), "classes=3,width=64")
	name := filepath.Base(os.Args[0]) // the program's, in all that it says of itself
	for _, verb := range []string{"train", "plan", "profile", "schedule check"} {
		help := run(t, 0, append(strings.Fields(verb), "--help")...)
		says(t, help, "\n  "+name+" "+verb)
		if strings.Contains(help, "penstock") {
			t.Errorf("the help of %s has another name:\n%s", verb, help)
		}
	}
	says(t, run(t, 64, "report", dir, "--out", plan), name+": ", "which "+name+" train --out has written")
	says(t, run(t, 64, "train", "--model", "spirals", "--data", "synthetic"),
		"--model spirals reads inputs such as [2], and --data synthetic has [1 28 28]")
	says(t, run(t, 64, "train", "--model", "mlp", "--data", "spirals"),
		fmt.Sprint("and --data spirals has ", []int64{2}))
}
