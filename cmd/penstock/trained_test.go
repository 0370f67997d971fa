package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock.example/metrics"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/safetensors"
	"penstock.example/torch"
	"penstock.example/train"
)

// evaluated is what penstock eval says.
func evaluated(t *testing.T, args ...string) evalLine {
	t.Helper()
	var line evalLine
	d := json.NewDecoder(strings.NewReader(must(t, with([]string{"eval", "--format", "json"}, args...)...).stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&line); err != nil {
		t.Fatal(err)
	}
	return line
}

// The model of a run is as good as the run has said, to the bit, however it is cut, whatever its limit and
// however many processes have saved it.
func TestEval(t *testing.T) {
	t.Setenv(asCommand, "1")
	out := filepath.Join(t.TempDir(), "out")
	r := spawned(t, nil, launched(2, with(small, "--steps", "3", "--seed", "4", "--autocast", "--out", out, "--format", "json")...)...)
	if r.code != exitDone {
		t.Fatalf("%+v", r)
	}
	_, done := lines(t, r.stdout)
	want := evaluated(t, out)
	if *want.Accuracy != *done.TestAccuracy || want.Step != 3 || want.Samples != 256 || want.Part != "test" || !(*want.Loss > 0) {
		t.Errorf("%+v; want %+v", want, done)
	}
	if err := os.Remove(filepath.Join(out, "step-000003", "optimizer-00001-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--stages", "2"}, {"--balance", "1,2,3", "--devices", "cpu:2,cpu:0,cpu:1"}, {"--memory-limit", "3MiB"}} {
		if got := evaluated(t, with([]string{filepath.Join(out, "step-000003")}, args...)...); *got.Accuracy != *want.Accuracy || *got.Loss != *want.Loss {
			t.Errorf("%q: %+v; want %+v", args, got.Evaluation, want.Evaluation)
		}
	}
	text := must(t, "eval", out, "--data", "synthetic", "--data-set", "seed=5,test=10").stdout
	if !regexp.MustCompile(`^.*/step-000003, mlp after step 3: 10 samples of synthetic \(test\)\nloss      \d.*\naccuracy  \d+\.\d\d %\n$`).MatchString(text) {
		t.Errorf("text: %s", text)
	}
	test, training := evaluated(t, out), evaluated(t, out, "--part", "train")
	all := evaluated(t, out, "--part", "all")
	sum := *test.Loss*float64(test.Samples) + *training.Loss*float64(training.Samples)
	if all.Samples != test.Samples+training.Samples || math.Abs(*all.Loss*float64(all.Samples)-sum) > 1e-6*sum {
		t.Errorf("all is %+v; the parts %+v and %+v", all.Evaluation, test.Evaluation, training.Evaluation)
	}

	for _, row := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{out, "--stages", "7"}, exitUsage, "--stages 7: the model has 6 layers"},
		{[]string{out, "--balance", "1,2"}, exitUsage, "--balance 1,2: "},
		{[]string{out, "--balance", "3,3", "--stages", "3"}, exitUsage, "--balance 3,3 with --stages 3"},
		{[]string{out, "--data-set", "classes=11"}, exitUsage, "--data-dir: the data have outputs 11, and the model was trained with 10"},
		{[]string{out, "--data", "synthetic", "--data-set", "size=9"}, exitUsage, "--data: the data have inputs float32 [1 9 9], and the model was trained with float32 [1 28 28]"},
		{[]string{out, "--data", "text", "--data-dir", "x"}, exitUsage, "--model mlp is for classification"},
		{[]string{out, "--data-dir", "x"}, exitUsage, "--data-dir x: it is for data with files"},
		{[]string{out, "--part", "validation"}, exitUsage, "--part validation: the run has held nothing out"},
		{[]string{out, "--best"}, exitUsage, "--best: there was no validation"},
		{[]string{out, "--memory-limit", "1KiB"}, exitFailed, " --memory-limit"},
	} {
		refuses(t, with([]string{"eval"}, row.args...), row.code, row.part)
	}
	if err := os.Remove(filepath.Join(out, configName)); err != nil {
		t.Fatal(err)
	}
	refuses(t, []string{"eval", out}, exitUsage, "--data is needed: there is no "+filepath.Join(out, configName))
	if err := os.Truncate(filepath.Join(out, "step-000003", "model-00002-of-00002.safetensors"), 100); err != nil {
		t.Fatal(err)
	}
	refuses(t, []string{"eval", out, "--data", "synthetic"}, exitFailed, "step-000003 is damaged: model-00002-of-00002.safetensors has 100 bytes, ")
	if err := os.Remove(filepath.Join(out, "step-000003", "model-00001-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	refuses(t, []string{"export", out, "--out", filepath.Join(out, "x")}, exitFailed, "model-00001-of-00002.safetensors is missing")
}

// predicted is what penstock predict says.
func predicted(t *testing.T, args ...string) (all []predictionLine) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(must(t, with([]string{"predict"}, args...)...).stdout))
	d.DisallowUnknownFields()
	for d.More() {
		var line predictionLine
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	return all
}

// A model that was trained on pictures tells those it was trained on, by their names, whatever the stages,
// and without the data.
func TestPredictPictures(t *testing.T) {
	directory, out := folderOf(t), filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "mlp", "--data", "images", "--data-dir", directory, "--data-set", "size=12", "--batch", "7", "--chunks", "2", "--epochs", "12", "--lr", "0.02", "--out", out)
	dark, light := filepath.Join(directory, "dark", "3.png"), filepath.Join(t.TempDir(), "elsewhere.png")
	if err := os.Rename(filepath.Join(directory, "light", "5.png"), light); err != nil {
		t.Fatal(err)
	}
	e := evaluated(t, out, "--part", "all")
	if e.Samples != 15 || *e.Accuracy != 1 {
		t.Errorf("%+v", e.Evaluation)
	}
	if err := os.RemoveAll(filepath.Join(directory, "light")); err != nil {
		t.Fatal(err)
	}
	all := predicted(t, out, dark, light, "--stages", "2")
	if len(all) != 2 || all[0].File != dark || all[1].File != light || all[0].Classes[0].Name != "dark" || all[1].Classes[0].Name != "light" || all[1].Classes[0].Class != 1 {
		t.Fatalf("%+v", all)
	}
	for _, line := range all {
		if len(line.Classes) != 2 || line.Classes[0].Probability < 0.5 || math.Abs(float64(line.Classes[0].Probability+line.Classes[1].Probability)-1) > 1e-6 {
			t.Errorf("%+v", line)
		}
	}
	if top := predicted(t, out, light, "--top", "1"); len(top) != 1 || len(top[0].Classes) != 1 || top[0].Classes[0] != all[1].Classes[0] {
		t.Errorf("%+v; want %+v", top, all[1].Classes[0])
	}
	whole, err := os.ReadFile(dark)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{out, dark, "none.png"}, exitUsage, "none.png: no such file"},
		{[]string{out, dark, textFile(t, "cut.png", string(whole[:len(whole)-30]))}, exitFailed, "cut.png: png: invalid format: not enough pixel data; want a PNG, JPEG or GIF that is whole"},
		{[]string{out, textFile(t, "a.txt", "hello")}, exitUsage, "a.txt: image: unknown format; want a PNG, JPEG or GIF that is whole, or an .npy of uint8 [3 12 12]"},
		{[]string{out, textFile(t, "a.txt", "")}, exitUsage, "a.txt: it is empty"},
		{[]string{out, dark, "--top", "0"}, exitUsage, "--top 0: want at least 1"},
		{[]string{savedBy(t, 1), dark}, exitUsage, `is of a model "three", which penstock models does not list`},
	} {
		refuses(t, with([]string{"predict"}, row.args...), row.code, row.part)
		if r := command(t, with([]string{"predict"}, row.args...)...); r.stdout != "" {
			t.Errorf("%q: something was written: %s", row.args, r.stdout)
		}
	}
	refuses(t, []string{"eval", out}, exitUsage, `classes ["dark"]; want at least two`)
	must(t, "train", "--model", "mlp", "--data", "images", "--data-dir", folderOf(t), "--data-set", "size=12", "--epochs", "1", "--out", filepath.Join(out, "x"))
	other := folderOf(t)
	if err := os.Rename(filepath.Join(other, "light"), filepath.Join(other, "bright")); err != nil {
		t.Fatal(err)
	}
	refuses(t, []string{"eval", out, "--data-dir", other}, exitUsage, "--data-dir: the data have the classes [bright dark], and the model was trained with [dark light]")
}

// numbersFile is an .npy of float32.
func numbersFile(t *testing.T, shape string, numbers ...float32) string {
	t.Helper()
	header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", shape)
	text := []byte("\x93NUMPY\x01\x00v\x00" + header + strings.Repeat(" ", 117-len(header)) + "\n")
	for _, x := range numbers {
		text = binary.LittleEndian.AppendUint32(text, math.Float32bits(x))
	}
	return textFile(t, "x.npy", string(text))
}

// Numbers are predicted from an .npy, standardised as the table was; what follows a text is said by name;
// pixels have a class each.
func TestPredictOthers(t *testing.T) {
	var table strings.Builder
	for i := range 200 {
		fmt.Fprintf(&table, "%d,%d,%g\n", i%20, i/20, 0.1*float64(i%20)-0.3*float64(i/20))
	}
	dir := t.TempDir()
	out := func(name string) string { return filepath.Join(dir, name) }
	must(t, "train", "--model", "mlp", "--data", "csv", "--data-dir", textFile(t, "a.csv", table.String()), "--data-set", "standardise=1,task=regression", "--set", "width=16",
		"--batch", "20", "--chunks", "2", "--optimizer", "adam", "--lr", "0.01", "--epochs", "40", "--out", out("table"))
	all := predicted(t, out("table"), numbersFile(t, "2, 2", 19, 0, 3, 9))
	if len(all) != 2 || all[1].Row != 1 || math.Abs(float64(all[0].Values[0])-1.9) > 0.3 || math.Abs(float64(all[1].Values[0])+2.4) > 0.3 {
		t.Errorf("%+v; want 1.9 and -2.4", all)
	}
	refuses(t, []string{"predict", out("table"), numbersFile(t, "1, 3", 1, 2, 3)}, exitUsage, "x.npy: it is float32 [1 3]; want an .npy of float32 [2 1 1], or with a dimension more in front")

	must(t, "train", "--model", "gpt", "--set", "depth=1,width=32,heads=2", "--data", "text", "--data-dir", textFile(t, "a.txt", strings.Repeat("abcd", 500)), "--window", "15",
		"--batch", "16", "--chunks", "2", "--optimizer", "adam", "--lr", "0.01", "--epochs", "12", "--out", out("text"))
	all = predicted(t, out("text"), textFile(t, "b.txt", "abcdab"), textFile(t, "c.txt", strings.Repeat("abcd", 20)), "--top", "2")
	if len(all) != 2 || all[0].Classes[0].Name != "c" || all[1].Classes[0].Name != "a" || len(all[0].Classes) != 2 {
		t.Errorf("%+v; want c and a", all)
	}
	refuses(t, []string{"predict", out("text"), textFile(t, "e.txt", "")}, exitUsage, "e.txt: it is empty")
	refuses(t, []string{"predict", out("text"), numbersFile(t, "2,", 1, 2)}, exitUsage, "x.npy: it is float32 [2]; want an .npy of int64 [n t], tokens from 0 to 255")

	must(t, onText(t, "--out", out("tokens"), "--steps", "200", "--set", "depth=1,width=16,heads=2,dropout=0,classes=400,context=12", "--optimizer", "adam", "--lr", "0.01")...)
	prompt := textFile(t, "d.txt", "The stages of the")
	all = predicted(t, out("tokens"), prompt, "--top", "1")
	if len(all) != 1 || !strings.HasPrefix(" pipeline", all[0].Classes[0].Name) || len(all[0].Classes[0].Name) < 2 {
		t.Errorf("%+v; want the beginning of \" pipeline\"", all)
	}
	if err := os.Remove(filepath.Join(out("tokens"), configName)); err != nil {
		t.Fatal(err)
	}
	refuses(t, []string{"predict", out("tokens"), prompt}, exitUsage, "d.txt: it is no file of NumPy; want an .npy of int64 [n t], tokens from 0 to 376, or text with the tokenizer that the set was made with: --tokenizer PATH")
	if again := predicted(t, out("tokens"), prompt, "--top", "1", "--tokenizer", fixtureTokenizer); len(again) != 1 || again[0].Classes[0] != all[0].Classes[0] {
		t.Errorf("%+v; want %+v", again, all)
	}
	refuses(t, []string{"predict", out("tokens"), prompt, "--tokenizer", "none"}, exitUsage, "--tokenizer: ", "want a tokenizer.json")
	refuses(t, []string{"predict", out("tokens"), textFile(t, "e.txt", "\xff"), "--tokenizer", fixtureTokenizer}, exitUsage, "e.txt: ", "UTF-8")
	refuses(t, []string{"predict", out("text"), prompt, "--tokenizer", fixtureTokenizer}, exitUsage, "--tokenizer "+fixtureTokenizer+": the model was not trained on tokens")

	must(t, "train", "--model", "unet", "--set", "B=1,C=4,depth=2", "--data", "synthetic", "--data-set", "size=16,classes=4,train=8,test=2", "--batch", "4", "--chunks", "1", "--steps", "1", "--out", out("pixels"))
	all = predicted(t, out("pixels"), numbersFile(t, "1, 16, 16", make([]float32, 256)...))
	if len(all) != 1 || len(all[0].Pixels) != 16 || len(all[0].Pixels[15]) != 16 || all[0].Classes != nil {
		t.Errorf("%+v", all)
	}
}

// What is exported are the weights of the checkpoint, under their names; as another type each number is
// the nearest that there is.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	out, file := filepath.Join(dir, "out"), filepath.Join(dir, "a.safetensors")
	must(t, with(small, "--steps", "2", "--model", "resnet20", "--batch", "8", "--data-set", "train=16,test=8", "--out", out)...)
	if r := must(t, "export", out, "--out", file); r.stdout != file+": 142 tensors of step 2\n" && !strings.HasSuffix(r.stdout, " tensors of step 2\n") {
		t.Error(r.stdout)
	}
	merged := filepath.Join(dir, "b.safetensors")
	must(t, "checkpoint", "merge", out, "--out", merged)
	a, err := os.ReadFile(file)
	b, err2 := os.ReadFile(merged)
	if err != nil || err2 != nil || string(a) != string(b) || !strings.Contains(string(a[:200]), `"format":"pt"`) {
		t.Errorf("the weights are not those that merge writes: %v, %v", err, err2)
	}
	must(t, "export", out, "--out", file, "--dtype", "float16")
	whole, narrow := opened(t, merged), opened(t, file)
	if len(whole) != len(narrow) || len(whole) < 20 {
		t.Fatalf("%d and %d tensors", len(whole), len(narrow))
	}
	for name, was := range whole {
		is := narrow[name]
		if was.DType == safetensors.I64 {
			if is.DType != was.DType || string(is.Data) != string(was.Data) {
				t.Errorf("%s is %+v; want %+v", name, is, was)
			}
			continue
		}
		want, err := safetensors.Convert(was, safetensors.F16)
		if err != nil || is.DType != safetensors.F16 || string(is.Data) != string(want.Data) {
			t.Errorf("%s: %v, or other numbers", name, err)
		}
	}
	before := tree(t, dir)
	refuses(t, []string{"export", out, "--out", filepath.Join(out, "step-000002", "model.safetensors")}, exitUsage, "would be overwritten")
	if after := tree(t, dir); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}

	// A number that the type does not have: nothing is written.
	large := train.Store{Dir: t.TempDir()}
	c := torch.NewCtx(torch.Options{})
	model := nn.NewSequential(nn.NewLinear(1, 1))
	nn.Materialise(c, nn.State(model), 1)
	if err := torch.SetBytes(nn.Params(model)[0].Tensor(), binary.LittleEndian.AppendUint32(nil, math.Float32bits(1e9))); err != nil {
		t.Fatal(err)
	}
	o, err := optim.SGD(optim.Config{LR: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := large.Save(train.Progress{Step: 1}, train.Recipe{}, model, o); err != nil {
		t.Fatal(err)
	}
	o.Close()
	nn.Free(model)
	c.Close()
	none := filepath.Join(large.Dir, "none")
	refuses(t, []string{"export", large.Dir, "--dtype", "float16", "--out", none}, exitFailed, `tensor "0.weight": element 0 is 1e+09, which F16 has no number for`)
	if _, err := os.Stat(none); err == nil {
		t.Error("a file was written")
	}
}

func opened(t *testing.T, path string) map[string]safetensors.Tensor {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]safetensors.Tensor{}
	for _, x := range f.Tensors() {
		if all[x.Name], err = f.Read(x.Name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// A run with --validate tells each epoch, keeps the best checkpoint and the newest ones, stops when it
// learns nothing more, and goes on as one that was never interrupted.
func TestValidate(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, more ...string) (ran, []validationLine) {
		t.Helper()
		r := must(t, with(with(small, "--data-set", "train=256,test=64", "--validate", "0.25", "--batch", "64", "--lr", "0.5", "--keep", "1", "--format", "json", "--out", filepath.Join(dir, name)), more...)...)
		var all []validationLine
		for line := range strings.Lines(r.stdout) {
			if strings.HasPrefix(line, `{"epoch":`) {
				var v validationLine
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Fatal(err)
				}
				all = append(all, v)
			}
		}
		return r, all
	}
	whole, said := run("a", "--epochs", "6")
	best := 0
	for i, v := range said {
		if v.Epoch != i || v.Step != int64(3*(i+1)) || v.Accuracy == nil {
			t.Errorf("%+v", v)
		}
		if v.Better {
			best = i
		}
	}
	if len(said) != 6 {
		t.Fatalf("%+v", said)
	}
	first, _ := run("b", "--epochs", "2")
	second, later := run("b", "--epochs", "6", "--resume")
	if sumOf(t, whole) != sumOf(t, second) || sumOf(t, first) == sumOf(t, second) || fmt.Sprint(*later[3].Accuracy, later[3].Loss, later[3].Better) != fmt.Sprint(*said[5].Accuracy, said[5].Loss, said[5].Better) {
		t.Errorf("%+v after resuming; want %+v", later, said)
	}
	c, err := findCheckpoint(filepath.Join(dir, "a"), false)
	if err != nil || c.Best == nil || c.Best.Epoch != best || c.Best.Since != 5-best {
		t.Fatalf("%+v, %v; want epoch %d", c, err, best)
	}
	e := evaluated(t, filepath.Join(dir, "a"), "--best", "--part", "validation", "--stages", "2")
	if e.Step != c.Best.Step || *e.Loss != said[best].Loss || *e.Accuracy != *said[best].Accuracy || e.Samples != 64 {
		t.Errorf("%+v of step %d; want %+v", e.Evaluation, e.Step, said[best])
	}
	steps, err := train.Store{Dir: filepath.Join(dir, "a")}.Steps()
	if want := map[bool]int{true: 1, false: 2}[best == 5]; err != nil || len(steps) != want {
		t.Errorf("steps %v, %v", steps, err)
	}
	h, err := metrics.Read(filepath.Join(dir, "b", metrics.FileName))
	if err != nil || len(h.Validations) != 6 || len(h.Tests) != 2 || *h.Validations[5].TestLoss != said[5].Loss {
		t.Errorf("%+v, %v", h.Validations, err)
	}

	// A rate at which nothing is learnt: the first epoch is the best.
	r, said := run("c", "--epochs", "9", "--lr", "1e-30", "--patience", "2", "--save-every", "100")
	if len(said) != 3 || !strings.Contains(r.stderr, "--patience 2: stopped after step 9; the lowest validation loss was ") {
		t.Errorf("%+v, stderr:\n%s", said, r.stderr)
	}
	if c, err := findCheckpoint(filepath.Join(dir, "c"), false); err != nil || c.Best.Step != 3 || c.Best.Since != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "c", "step-000003")); err != nil {
		t.Error(err)
	}
	r, said = run("c", "--epochs", "9", "--lr", "1e-30", "--patience", "3", "--resume")
	if len(said) != 1 || !strings.Contains(r.stderr, "--patience 3: stopped after step 12") {
		t.Errorf("%+v, stderr:\n%s", said, r.stderr)
	}
	for _, row := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"--validate", "1"}, exitUsage, "--validate 1: want a share of the training samples between 0 and 1, such as 0.1, or test"},
		{[]string{"--patience", "2"}, exitUsage, "--patience 2: it needs --validate"},
		{[]string{"--keep", "2"}, exitUsage, "--keep 2: it needs --out DIR"},
		{[]string{"--data-set", "train=1", "--validate", "0.5"}, exitFailed, "--validate 0.5: "},
	} {
		refuses(t, with(with(small, "--steps", "1"), row.args...), row.code, row.part)
	}
	refuses(t, with(small, "--data-set", "train=256,test=64", "--validate", "0.5", "--batch", "64", "--lr", "0.5", "--resume", "--out", filepath.Join(dir, "a")), exitUsage,
		`data.settings.validation is "0.25" there and "0.5" here; resume with the --validate of then`)
}

// A run that --steps ends is validated there: as one of --epochs is at the end of an epoch, and within
// one as well, so that there is a best checkpoint. A resumed run writes each validation once.
func TestValidateAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, more ...string) ran {
		t.Helper()
		return must(t, with(with(small, "--data-set", "train=64,test=64", "--validate", "0.1", "--batch", "32", "--format", "json", "--out", filepath.Join(dir, name)), more...)...)
	}
	validations := func(name string) []metrics.Test {
		t.Helper()
		h, err := metrics.Read(filepath.Join(dir, name, metrics.FileName))
		if err != nil {
			t.Fatal(err)
		}
		return h.Validations
	}
	byEpochs, bySteps := run("epochs", "--epochs", "1"), run("steps", "--steps", "2")
	if sumOf(t, byEpochs) != sumOf(t, bySteps) {
		t.Error("other weights")
	}
	want, got := validations("epochs"), validations("steps")
	if len(want) != 1 || len(got) != 1 || got[0].Step != 2 || *got[0].TestLoss != *want[0].TestLoss {
		t.Errorf("--steps 2 was validated %+v; want %+v", got, want)
	}
	if e := evaluated(t, filepath.Join(dir, "steps"), "--best", "--part", "validation"); e.Step != 2 {
		t.Errorf("the best is step %d; want 2", e.Step)
	}

	partial := run("partial", "--steps", "1")
	if !strings.Contains(partial.stdout, `"partial":true`) {
		t.Error(partial.stdout)
	}
	if e := evaluated(t, filepath.Join(dir, "partial"), "--best", "--part", "validation"); e.Step != 1 {
		t.Errorf("the best is step %d; want 1", e.Step)
	}
	for _, steps := range []string{"1", "2", "2", "4"} {
		run("partial", "--steps", steps, "--resume")
	}
	var steps []int64
	for _, v := range validations("partial") {
		steps = append(steps, v.Step)
	}
	if fmt.Sprint(steps) != "[1 2 4]" {
		t.Errorf("validated after steps %v; want each once", steps)
	}
}

// sumOf is the hash of the weights at the end of a run.
func sumOf(t *testing.T, r ran) string {
	t.Helper()
	found := regexp.MustCompile(`"params_sha256":"(\w+)"`).FindStringSubmatch(r.stdout)
	if found == nil {
		t.Fatal(r.stdout)
	}
	return found[1]
}
