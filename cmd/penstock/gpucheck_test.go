package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock.example/torch"
)

// gpuCheck runs scripts/gpu-check with a go command in front that builds programs made of a shell's
// lines and runs tests by others. It returns the exit code, what it says, and the report.
func gpuCheck(t *testing.T, build, test string, args ...string) (code int, said, report string) {
	t.Helper()
	dir := t.TempDir()
	program := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/usr/bin/env bash\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program("penstock", build)
	program("bench", `echo "measured $*"`)
	// go build -o FILE ./cmd/penstock, and go -C bench build ... -o FILE .
	program("go", fmt.Sprintf(`if [[ $1 == test ]]; then
	%s
else
	while [[ $1 != -o ]]; do shift; done
	cp %s/"${2##*/}" "$2"
fi`, test, dir))
	out := filepath.Join(dir, "report.md")
	cmd := exec.Command("../../scripts/gpu-check", append(args, "--out", out)...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+dir)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	content, err := os.ReadFile(out)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text), string(content)
}

// The check of GPUs runs its parts in small on a CPU. A part that fails is in the report with what it said, and the rest runs.
func TestGPUCheckOnACPU(t *testing.T) {
	full(t)
	code, said, report := gpuCheck(t, fmt.Sprintf(`exec %q "$@"`, os.Args[0]), `[[ $* != *./torch* ]] || { echo "an operator is wrong"; exit 3; }`,
		"--cpu", "--only", "operators,bits,stages,nccl,throughput")
	if code != 1 {
		t.Errorf("exit code %d:\n%s\n%s", code, said, report)
	}
	for _, want := range []string{
		"| build | passed |", "| operators | FAILED (3) |", "an operator is wrong", "| bits | passed |", "| stages | passed |", "| nccl | passed |", "two replicas, in two processes on one device: ",
		"| throughput | passed |", "measured --only plain --devices cpu:7 --quick", "* libtorch: " + torch.Version(),
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	hashes := map[string]int{}
	for _, line := range regexp.MustCompile(`(?m)^gpt, .*: ([0-9a-f]{16}) `).FindAllStringSubmatch(report, -1) {
		hashes[line[1]]++
	}
	if len(hashes) != 1 || fmt.Sprint(hashes)[len("map[")+16:] != ":7]" {
		t.Errorf("weights of 7 runs: %v", hashes)
	}
}

// Other weights of one of the runs, or a run that ends early, fail a part.
func TestGPUCheckSeesOtherWeights(t *testing.T) {
	for _, row := range []struct{ penstock, want string }{
		{`[[ $* == *"--stages 3"* ]] && s=1 || s=0; echo '{"done":true,"params_sha256":"'$s'123456789abcdef0","step_ms_median":3.5}'`, "gpt, 3 stages: 1123456789abcdef 3 ms a step, WANT 0123456789abcdef"},
		{`[[ $* == *always* ]] && { echo "out of memory" >&2; exit 1; }; echo '{"done":true,"params_sha256":"0123456789abcdef0","step_ms_median":3.5}'`, "gpt, 2 stages, always: failed: out of memory"},
	} {
		code, said, report := gpuCheck(t, row.penstock, "true", "--cpu", "--only", "stages")
		if code != 1 || !strings.Contains(report, "| stages | FAILED (1) |") || !strings.Contains(report, row.want) {
			t.Errorf("exit code %d, want %q in\n%s\n%s", code, row.want, said, report)
		}
	}
}

func TestGPUCheckRefuses(t *testing.T) {
	rows := []struct {
		args []string
		want string
	}{
		{[]string{"--cpu", "--only", "stages,speed"}, "there is no part speed; want some of operators bits"},
		{[]string{"now"}, "unexpected argument now"},
	}
	if torch.CUDADevices() == 0 {
		rows = append(rows, struct {
			args []string
			want string
		}{nil, "there is no GPU here"})
	}
	for _, row := range rows {
		if code, said, report := gpuCheck(t, "true", "true", row.args...); code != 2 || !strings.Contains(said, row.want) || report != "" {
			t.Errorf("%v: exit code %d:\n%s%s", row.args, code, said, report)
		}
	}
}
