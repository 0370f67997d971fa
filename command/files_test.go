package command

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	noerr "penstock.example/internal/must"
)

// Whatever it is called, an input is not overwritten.
func TestInputsAreKept(t *testing.T) {
	chain := chainFile(t)
	before := noerr.Get(os.ReadFile(chain))(t)
	dir := filepath.Dir(chain)
	link, hard, drawn := filepath.Join(dir, "link.json"), filepath.Join(dir, "hard.json"),
		filepath.Join(dir, "chain.svg")
	for _, make := range []error{os.Symlink(chain, link), os.Link(chain, hard), os.Link(chain, drawn)} {
		if make != nil {
			t.Fatal(make)
		}
	}
	for _, args := range [][]string{
		{"remat", "solve", chain, "--limit", "30MiB", "--out", chain},
		{"remat", "solve", chain, "--limit", "30MiB", "--out",
			filepath.Join(dir, "..", filepath.Base(dir), "chain.json")},
		{"remat", "solve", chain, "--limit", "30MiB", "--out", link},
		{"remat", "solve", link, "--limit", "30MiB", "--out", chain},
		{"remat", "solve", chain, "--limit", "30MiB", "--out", hard},
		{"remat", "curve", chain, "--out", drawn},
		{"remat", "curve", drawn, "--out", drawn},
	} {
		r := command(t, args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, "would be overwritten") || r.stdout != "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, path := range []string{chain, link, hard, drawn} {
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("%s has %q, %v", path, after, err)
		}
	}
	must(t, "remat", "solve", chain, "--limit", "30MiB", "--out", filepath.Join(dir, "plan.json"))
}

// Chains and plans have a bounded size.
func TestInputs(t *testing.T) {
	chain, dir := chainFile(t), t.TempDir()
	for path, want := range map[string]string{"/dev/zero": "more than 67108864 bytes", dir: "directory"} {
		if r := command(t, "remat", "solve", path, "--limit", "30MiB"); r.code != exitUsage ||
			!strings.Contains(r.stderr, path) || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %+v", path, r)
		}
	}
	shell := func(line string) (string, error) {
		cmd := exec.Command("bash", "-c", line, os.Args[0], chain)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, line := range []string{`exec "$0" remat compare /dev/stdin < "$1"`,
		`cat "$1" | "$0" remat compare /dev/stdin`, `exec "$0" remat compare <(cat "$1")`} {
		if out, err := shell(line); err != nil || !strings.Contains(out, "sequential") {
			t.Errorf("%s: %v, %s", line, err, out)
		}
	}
}

// Outputs are files, or what takes bytes as they come: /dev/null stays what it is, and /dev/stdout
// is standard output wherever it leads.
func TestOutputsToDevices(t *testing.T) {
	chain, dir := chainFile(t), t.TempDir()
	null, pipe := filepath.Join(dir, "null"), filepath.Join(dir, "pipe")
	// a link, so that a fault does not cost the machine its /dev/null
	noerr.Do(t, os.Symlink("/dev/null", null))
	noerr.Do(t, syscall.Mkfifo(pipe, 0o666))
	for _, args := range [][]string{
		profiled("--out", null), {"remat", "solve", chain, "--limit", "30MiB", "--out", null}, with(small,
			"--steps", "3", "--trace", null),
	} {
		must(t, args...)
		if target, err := os.Readlink(null); err != nil || target != "/dev/null" {
			t.Fatalf("%q: the device was replaced: %q, %v", args, target, err)
		}
	}
	for _, args := range [][]string{
		profiled("--out", pipe), {"remat", "solve", chain, "--limit", "30MiB", "--out", pipe}, with(small,
			"--steps", "1", "--trace", pipe),
	} {
		if r := command(t, args...); r.code != exitUsage ||
			!strings.Contains(r.stderr, "cannot be written: not a regular file but a named pipe") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	r := must(t, "remat", "solve", chain, "--limit", "30MiB", "--out", "/dev/stdout")
	if !strings.HasPrefix(r.stdout, "{") || strings.Contains(r.stdout, "\npeak ") {
		t.Errorf("it is not the plan alone: %s", r.stdout)
	}
	if r := command(t, "remat", "solve", chain, "--limit", "30MiB", "--out",
		"/dev/full"); r.code != exitFailed || !strings.Contains(r.stderr, "no space left") {
		t.Errorf("a full device: %+v", r)
	}
}

// TestFoldersThatAreNotThere: a file that cannot be written because its folder is not there is refused by
// its own name before anything is read or measured, and no folder is made.
func TestFoldersThatAreNotThere(t *testing.T) {
	dir, chain := t.TempDir(), chainFile(t)
	out := filepath.Join(dir, "out")
	must(t, with(small, "--steps", "1", "--out", out)...)
	folder := filepath.Join(dir, "none")
	for _, row := range []struct {
		name, flag string
		args       []string
	}{
		{"plan.json", "out", []string{"plan", "--model", "mlp", "--batch", "64"}},
		{"chain.json", "out", []string{"profile", "--model", "mlp"}},
		{"plan.json", "out", []string{"remat", "solve", chain, "--limit", "1GiB"}},
		{"mlp.safetensors", "out", []string{"export", out}},
		{"step.json", "trace", with(small, "--steps", "1", "--plan", "auto")},
	} {
		file := filepath.Join(folder, row.name)
		r := command(t, append(row.args, "--"+row.flag, file)...)
		want := "penstock: --" + row.flag + " " + file + " cannot be written: there is no folder " +
			folder + "; make it, or choose another path\n"
		if r.code != exitUsage || r.stdout != "" || r.stderr != want {
			t.Errorf("%v: exit code %d, stdout %q, stderr:\n%swant %s", row.args, r.code, r.stdout,
				r.stderr, want)
		}
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder was made")
	}
}
