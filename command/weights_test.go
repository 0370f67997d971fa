package command

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/safetensors"
)

// still is a training run of a step that changes nothing: the hash of its weights is that of the
// weights it starts from.
var still = with(small, "--steps", "1", "--lr", "1e-38", "--momentum", "0", "--format", "json")

// weightsOf is the file of the weights that a run with a seed starts from, and their hash.
func weightsOf(t *testing.T, seed string) (path, sum string) {
	dir := t.TempDir()
	sum = sha(t, with(still, "--seed", seed, "--out", dir)...)
	path = filepath.Join(dir, "model.safetensors")
	must(t, "export", dir, "--out", path)
	return path, sum
}

// changed writes a file anew with other tensors.
func changed(t *testing.T, path string, change func(*safetensors.Tensor)) string {
	t.Helper()
	var all []safetensors.Tensor
	for _, tensor := range opened(t, path) {
		change(&tensor)
		all = append(all, tensor)
	}
	other := filepath.Join(t.TempDir(), "other.safetensors")
	noerr.Do(t, safetensors.WriteFile(other, all, nil))
	return other
}

// A run starts from the weights of the file, on whichever stages they are, in however many replicas
// and processes.
func TestTrainFromWeights(t *testing.T) {
	file, sum := weightsOf(t, "9")
	if fresh := sha(t, with(still, "--seed", "7")...); fresh == sum {
		t.Fatal("another seed gives the same weights")
	}
	wide := changed(t, file, func(tensor *safetensors.Tensor) {
		tensor.Name = "module." + tensor.Name
		var data []byte
		for i := 0; i < len(tensor.Data); i += 4 {
			data = binary.LittleEndian.AppendUint64(data,
				math.Float64bits(float64(math.Float32frombits(binary.LittleEndian.Uint32(tensor.Data[i:])))))
		}
		tensor.DType, tensor.Data = safetensors.F64, data
	})
	for what, args := range map[string][]string{
		"one stage":                {"--init", file},
		"three stages":             {"--init", file, "--balance", "2,2,2"},
		"replicas":                 {"--init", file, "--replicas", "2"},
		"a prefix and other types": {"--init", wide, "--init-rename", "module="},
	} {
		r := must(t, with(still, with(args, "--seed", "7")...)...)
		if _, done := lines(t, r.stdout); done.ParamsSHA256 != sum {
			t.Errorf("%s: the weights are not those of the file", what)
		}
		if n := strings.Count(r.stderr, ": loaded 6 of 6"); n != 1 {
			t.Errorf("%s: the report is there %d times:\n%s", what, n, r.stderr)
		}
	}
	if got := sha(t, with(still, "--seed", "9", "--init", file, "--init-skip", "fc.*")...); got != sum {
		t.Error("what is skipped does not start as it would without the file")
	}
	p := begin(t, nil, launched(2, with(still, "--seed", "7", "--stages", "2", "--balance", "3,3", "--init",
		file)...)...)
	if code := p.end(t); code != exitDone || !strings.Contains(p.stdout.String(), sum) {
		t.Errorf("two processes: exit code %d\n%s%s", code, p.stdout, p.stderr)
	}
}

// A resumed run goes on from its checkpoint, whatever the flag says.
func TestResumedRunsKeepTheirWeights(t *testing.T) {
	file, sum := weightsOf(t, "9")
	dir := t.TempDir()
	first := sha(t, with(still, "--seed", "7", "--init", file, "--out", dir)...)
	noerr.Do(t, os.Remove(file))
	if again := sha(t, with(still, "--seed", "7", "--init", file, "--out", dir,
		"--resume")...); first != sum || again != sum {
		t.Errorf("%s at first, %s resumed, want %s", first, again, sum)
	}
}

func TestInitRefuses(t *testing.T) {
	file, _ := weightsOf(t, "9")
	prefixed := changed(t, file, func(tensor *safetensors.Tensor) { tensor.Name = "module." + tensor.Name })
	headless := changed(t, file, func(tensor *safetensors.Tensor) {
		if tensor.Name == "fc.bias" {
			tensor.Shape, tensor.Data = []int64{3}, tensor.Data[:12]
		}
	})
	text := filepath.Join(t.TempDir(), "text")
	noerr.Do(t, os.WriteFile(text, []byte("no weights at all"), 0o666))
	torch := filepath.Join(t.TempDir(), "torch.pth")
	noerr.Do(t, os.WriteFile(torch, []byte("PK\x03\x04\x00\x00\x08\x08archive"), 0o666))
	for _, row := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"--init", file, "--init-rename", "a=b", "--init-skip", "fc.bais"}, exitDone,
			[]string{"loaded 6 of 6; rules that match no name: a=b, fc.bais"}},
		{[]string{"--init", torch}, exitUsage,
			[]string{torch, "it is a file of PyTorch; want", "safetensors.torch.save_file("}},
		{[]string{"--init", prefixed}, exitUsage,
			[]string{"penstock: --init " + prefixed + " is not of this model", "not in the file",
				"--init-rename"}},
		{[]string{"--init", headless}, exitUsage,
			[]string{`"fc.bias" is [3] in the file and [10] in the model`, "--init-skip"}},
		{[]string{"--init", text}, exitUsage, []string{"--init: ", text + ": "}},
		{[]string{"--init-skip", "fc.*"}, exitUsage,
			[]string{"--init-skip fc.* has no effect without --init FILE"}},
		{[]string{"--init", file, "--init-rename", "a"}, exitUsage,
			[]string{"--init-rename", "want OLD=NEW"}},
	} {
		out := t.TempDir() + "/out"
		r := command(t, with(still, with(row.args, "--out", out)...)...)
		if r.code != row.code || (r.stdout == "") != (row.code == exitUsage) {
			t.Errorf("%q: exit code %d, want %d, stdout %q", row.args, r.code, row.code, r.stdout)
		}
		for _, want := range row.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%q: stderr lacks %q:\n%s", row.args, want, r.stderr)
			}
		}
		if found, _ := filepath.Glob(out + "/step-*"); len(found) > 0 && row.code != exitDone {
			t.Errorf("%q: wrote %q", row.args, found)
		}
	}
}
