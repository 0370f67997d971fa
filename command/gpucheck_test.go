package command

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	noerr "penstock.example/internal/must"
)

// gpuChecker is scripts/gpu-check with a kit whose programs are lines of a shell.
type gpuChecker struct {
	*exec.Cmd
	out  string
	said bytes.Buffer
}

// Programs of a kit in which nothing is wrong. Those of tests print what the Go program of a test does.
func goodKit() map[string]string {
	const passes = `[[ $1 != -test.list ]] && echo "--- PASS: TestOne (0.00s)"; true`
	return map[string]string{
		"penstock": `case "$*" in
	version) echo "devices   cpu:0" ;;
	*cuda:0*) echo "there is no GPU"; exit 64 ;;
	*) echo '{"step":1,"peak_bytes":[1000]}'
	   echo '{"done":true,"params_sha256":"0123456789abcdef0","step_ms_median":3.5}' ;;
esac`,
		"bench":     `echo "bench: $*  1.00" >&2`,
		"pipe.test": passes, "segment.test": passes, "models.test": passes,
	}
}

func newGPUChecker(t *testing.T, kit map[string]string, args ...string) *gpuChecker {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("there is no xz")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3")
	}
	dir := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(dir, path)
		noerr.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o755)))
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, text := range kit {
		text = "#!/usr/bin/env bash\n" + text + "\n"
		noerr.Do(t, w.WriteHeader(&tar.Header{Name: "bin/" + name, Mode: 0o755, Size: int64(len(text))}))
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	noerr.Do(t, w.Close())
	xz := exec.Command("xz")
	xz.Stdin = &archive
	packed := noerr.Get(xz.Output())(t)
	write("kit/kit.tar.xz", string(packed))
	write("kit/manifest", "commit 0123\n")
	// the programs are scripts
	write("bin/ldd", "#!/bin/sh\n")
	// whose libraries are looked for
	write("python/torch/__init__.py", "")
	write("python/torch/lib/libtorch.so", "")                                    //
	write("root/scripts/gpu-check", string(mustRead(t, "../scripts/gpu-check"))) // a checkout of its own
	write("root/scripts/fixtures/generate.py", "")                               //
	write("root/internal/torchtest/devicetests.txt", "internal/segment TestOne\npipe TestOne\n")
	for _, folder := range []string{"bench", "models", "pipe", "internal/segment"} {
		write("root/"+folder+"/empty", "")
	}
	c := &gpuChecker{Cmd: exec.Command(filepath.Join(dir, "root/scripts/gpu-check"),
		append([]string{"--kit", filepath.Join(dir, "kit"), "--out", filepath.Join(dir, "out")},
			args...)...), out: filepath.Join(dir, "out")}
	c.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "PYTHONPATH="+
		filepath.Join(dir, "python"))
	c.Stdout, c.Stderr = &c.said, &c.said
	return c
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	return noerr.Get(os.ReadFile(path))(t)
}

// want fails unless the exit code is right and each text is in the report.
func (c *gpuChecker) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	report := string(mustRead(t, filepath.Join(c.out, "report.md")))
	if got := c.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	for _, text := range texts {
		if !strings.Contains(report, text) {
			t.Errorf("the report lacks %q", text)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", c.said.String(), report)
	}
}

func TestGPUCheckPasses(t *testing.T) {
	t.Parallel()
	c := newGPUChecker(t, goodKit(), "--cpu")
	_ = c.Run() // the exit code is looked at
	c.want(t, 0, "commit 0123", "| kit | passed |", "| first | passed |", "| train | passed |",
		"weights {'gpt': '0123456789abcdef'",
		"| tests | passed |", "| limits | passed |", "--devices cpu:0 --trial --only plain  1.00")
}

// What is wrong in one step is in the report with its first lines, and the rest runs.
func TestGPUCheckSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	kit := goodKit()
	kit["penstock"] = `[[ $* != *zb-h1* ]] || { echo ` +
		`'{"params_sha256":"1123456789abcdef0","step_ms_median":3.5}'; exit; }` + "\n" +
		`[[ $* != *always* ]] || { echo "out of memory" >&2; exit 1; }` + "\n" + kit["penstock"]
	kit["segment.test"] = `[[ $1 == -test.list ]] || { echo "=== RUN TestTwo"; echo "    an operator is ` +
		`wrong"; echo "--- FAIL: TestTwo (0.00s)"; exit 1; }`
	// A GPU that is lost ends a program at once.
	kit["pipe.test"] = `[[ $1 == -test.list ]] || { echo "CUDA error: device-side assert triggered"; ` +
		`sleep 60; }`
	kit["bench"] = `[[ $* != *limits* ]] || { echo "bench: one row  2.00"; exit 1; }`
	c := newGPUChecker(t, kit, "--cpu")
	begun := time.Now()
	_ = c.Run() // likewise
	c.want(t, 1, "| kit | passed |", "| first | FAILED |",
		"stopped: this process cannot use the GPU any more", "| train | FAILED |",
		"gpt, 2 stages, zb-h1: 1123456789abcdef", "want 0123456789abcdef",
		"gpt, 2 stages, always: exit code 1: out of memory", "| tests | FAILED |",
		"segment: TestTwo", "an operator is wrong", "| speed | passed |", "| limits | FAILED |",
		"one row  2.00", "| overhead | passed |")
	if took := time.Since(begun); took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
}
