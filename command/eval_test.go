package command

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/safetensors"
	"penstock.example/tokenizer"
)

// evaluated is what penstock eval says.
func evaluated(t *testing.T, args ...string) (line evalLine) {
	t.Helper()
	decode(t, must(t, with([]string{"eval", "--format", "json"}, args...)...).stdout, &line)
	return line
}

// The model of a run is as good as the run has said, to the bit, however it is cut, whatever its limit and
// however many processes have saved it.
func TestEval(t *testing.T) {
	t.Setenv(asCommand, "1")
	out := filepath.Join(t.TempDir(), "out")
	r := spawned(t, nil, launched(2, with(small, "--steps", "3", "--seed", "4", "--autocast", "--out", out,
		"--format", "json")...)...)
	_, done := lines(t, r.stdout)
	want := evaluated(t, out)
	if *want.Accuracy != *done.TestAccuracy || want.Step != 3 || want.Samples != 256 || want.Part != "test" ||
		!(*want.Loss > 0) {
		t.Errorf("%+v; want %+v", want, done)
	}
	saved := filepath.Join(out, "step-000003")
	noerr.Do(t, os.Remove(filepath.Join(saved, "optimizer-00001-of-00002.safetensors")))
	for _, args := range []string{"--stages 2", "--stages 3 --devices cpu:2,cpu:0,cpu:1",
		"--memory-limit 3MiB"} {
		got := evaluated(t, with([]string{saved}, strings.Fields(args)...)...)
		if *got.Accuracy != *want.Accuracy || *got.Loss != *want.Loss {
			t.Errorf("%s: %+v; want %+v", args, got.Evaluation, want.Evaluation)
		}
	}
	several := spawned(t, nil, launched(2, "eval", out, "--format", "json")...)
	var got evalLine
	if decode(t, several.stdout, &got); *got.Accuracy != *want.Accuracy || *got.Loss != *want.Loss {
		t.Errorf("in two processes: %+v; want %+v", got.Evaluation, want.Evaluation)
	}
	text := must(t, "eval", out, "--data", "synthetic", "--data-set", "seed=5,test=10").stdout
	if !regexp.MustCompile(`^.*/step-000003, mlp after step 3: 10 samples of synthetic \(test\)\n` +
		`loss      \d.*\naccuracy  \d+\.\d\d %\n$`).MatchString(text) {
		t.Errorf("text: %s", text)
	}
	training, all := evaluated(t, out, "--part", "train"), evaluated(t, out, "--part", "all")
	sum := *want.Loss*float64(want.Samples) + *training.Loss*float64(training.Samples)
	if all.Samples != want.Samples+training.Samples ||
		math.Abs(*all.Loss*float64(all.Samples)-sum) > 1e-6*sum {
		t.Errorf("all is %+v; the parts %+v and %+v", all.Evaluation, want.Evaluation, training.Evaluation)
	}
	for line, part := range map[string]string{
		"--stages 7": "--stages 7: ",
		"--data-set classes=11": "inputs float32 [1 28 28] and outputs 11 for " +
			"classification, and the model was",
		"--data synthetic --data-set size=9": "the data have inputs float32 [1 9 9] and outputs 10",
		"--data text --data-dir x":           "--model mlp is for classification",
		"--best":                             "--best: there was no validation",
		"--window 9":                         "--window 9 has no effect without --data text, tokens or jsonl",
	} {
		refuses(t, with([]string{"eval", out}, strings.Fields(line)...), exitUsage, part)
	}
	refuses(t, []string{"eval", out, "--memory-limit", "1KiB"}, exitFailed, " --memory-limit")
	noerr.Do(t, os.Remove(filepath.Join(out, flagsFile)))
	refuses(t, []string{"eval", out}, exitUsage, "--data is needed: "+filepath.Join(out, flagsFile))
	noerr.Do(t, os.Truncate(filepath.Join(saved, "model-00002-of-00002.safetensors"), 100))
	refuses(t, []string{"eval", out, "--data", "synthetic"}, exitUsage,
		"step-000003 is damaged: model-00002-of-00002.safetensors has 100 bytes, ")
}

// Rows of another file are standardised as the run's were, with their columns found by name: a model gives
// the same on them as on the same rows of the run's file.
func TestEvalOfOtherRows(t *testing.T) {
	table := func(name string, rows int, header, line string) string { // of a, b and their weighted sum
		text := header
		for i := range rows {
			a, b := i%20, i/20
			text += fmt.Sprintf("\n"+line, a, b, 0.1*float64(a)-0.3*float64(b))
		}
		return textFile(t, name, text+"\n")
	}
	const straight = "%d,%d,%g"
	out := filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "mlp", "--set", "width=16", "--data", "csv", "--data-dir",
		table("a.csv", 200, "a,b,sum", straight), "--data-set", "standardise=1,task=regression", "--batch",
		"20", "--chunks", "2", "--optimizer", "adam", "--lr", "0.01", "--epochs", "40", "--out", out)
	ten := table("ten.csv", 10, "a,b,sum", straight)
	few := evaluated(t, out, "--data-dir", ten, "--part", "all")
	if few.Samples != 10 || *few.MSE > 0.1 {
		t.Errorf("10 rows: %+v", few.Evaluation)
	}
	turned := table("b.csv", 10, "sum,b,a", "%[3]g,%[2]d,%[1]d")
	// The rows are split by chance, which changes the order of the sum alone.
	if got := evaluated(t, out, "--data-dir", turned, "--part",
		"all"); math.Abs(*got.MSE-*few.MSE) > 1e-5*(*few.MSE) {
		t.Errorf("other columns: %+v; want %+v", got.Evaluation, few.Evaluation)
	}
	refuses(t, []string{"eval", out, "--data-dir", table("c.csv", 10, "a,c,sum", straight)}, exitUsage,
		"the columns are a, c, sum, and the model was trained with a, b, sum")

	all := predicted(t, out, numbersFile(t, "2, 2", 19, 0, 3, 9))
	if len(all) != 2 || all[1].Row != 1 || math.Abs(float64(all[0].Values[0])-1.9) > 0.3 ||
		math.Abs(float64(all[1].Values[0])+2.4) > 0.3 {
		t.Errorf("%+v; want 1.9 and -2.4", all)
	}
	refuses(t, []string{"predict", out, numbersFile(t, "1, 3", 1, 2, 3)}, exitUsage,
		"x.npy: it is float32 [1 3]; want an .npy of float32 [2 1 1], or with a dimension more in front")
}

// predicted is what penstock predict says.
func predicted(t *testing.T, args ...string) (all []predictionLine) {
	t.Helper()
	for text := range strings.Lines(must(t, with([]string{"predict"}, args...)...).stdout) {
		var line predictionLine
		decode(t, text, &line)
		all = append(all, line)
	}
	return all
}

// A model that was trained on pictures tells those it was trained on, by their names, whatever the stages,
// and without the data.
func TestPredictPictures(t *testing.T) {
	directory, out := folderOf(t), filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "mlp", "--data", "images", "--data-dir", directory, "--data-set", "size=12",
		"--batch", "7", "--chunks", "2", "--epochs", "12", "--lr", "0.02", "--out", out)
	dark, light := filepath.Join(directory, "dark", "3.png"), filepath.Join(t.TempDir(), "elsewhere.png")
	noerr.Do(t, os.Rename(filepath.Join(directory, "light", "5.png"), light))
	if e := evaluated(t, out, "--part", "all"); e.Samples != 15 || *e.Accuracy != 1 {
		t.Errorf("%+v", e.Evaluation)
	}
	noerr.Do(t, os.RemoveAll(filepath.Join(directory, "light")))
	all := predicted(t, out, dark, light, "--stages", "2")
	if len(all) != 2 || all[0].File != dark || all[1].File != light || all[0].Classes[0].Name != "dark" ||
		all[1].Classes[0].Name != "light" || all[1].Classes[0].Class != 1 || len(all[0].Classes) != 2 ||
		math.Abs(float64(all[0].Classes[0].Probability+all[0].Classes[1].Probability)-1) > 1e-6 {
		t.Fatalf("%+v", all)
	}
	if top := predicted(t, out, light, "--top", "1"); len(top[0].Classes) != 1 ||
		top[0].Classes[0] != all[1].Classes[0] {
		t.Errorf("%+v; want %+v", top, all[1].Classes[0])
	}
	whole := mustRead(t, dark)
	cut := textFile(t, "cut.png", string(whole[:len(whole)-30]))
	for _, row := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{out, dark, "none.png"}, exitUsage, "none.png: no such file"},
		{[]string{out, dark, cut}, exitUsage,
			"cut.png: png: invalid format: not enough pixel data; want a PNG,"},
		{[]string{savedBy(t, 1), dark}, exitUsage,
			`is of a model "three", which penstock models does not list`},
	} {
		refuses(t, with([]string{"predict"}, row.args...), row.code, row.part)
	}
	refuses(t, []string{"eval", out}, exitUsage, `classes ["dark"]; want at least two`)
	damaged := folderOf(t)
	for i := range 8 {
		if err := os.Truncate(filepath.Join(damaged, "dark", fmt.Sprintf("%d.png", i)), 40); err != nil {
			t.Fatal(err)
		}
	}
	refuses(t, []string{"eval", out, "--data-dir", damaged, "--part", "all"}, exitUsage, "0.png: ")
	other := folderOf(t)
	noerr.Do(t, os.Rename(filepath.Join(other, "light"), filepath.Join(other, "bright")))
	refuses(t, []string{"eval", out, "--data-dir", other}, exitUsage,
		"of the classes [bright dark], and the model")
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

// What follows a text is said by name, of bytes and of tokens; pixels have a class each. A model of tokens
// reads those of the tokenizer that it was trained with, and no others, also as many.
func TestPredictTextAndPixels(t *testing.T) {
	dir := t.TempDir()
	out := func(name string) string { return filepath.Join(dir, name) }
	must(t, "train", "--model", "gpt", "--set", "depth=1,width=32,heads=2", "--data", "text", "--data-dir",
		textFile(t, "a.txt", strings.Repeat("abcd", 500)), "--window", "15", "--batch", "16", "--chunks", "2",
		"--optimizer", "adam", "--lr", "0.01", "--epochs", "12", "--out", out("text"))
	all := predicted(t, out("text"), textFile(t, "b.txt", "abcdab"),
		textFile(t, "c.txt", strings.Repeat("abcd", 20)), "--top", "2")
	if len(all) != 2 || all[0].Classes[0].Name != "c" || all[1].Classes[0].Name != "a" ||
		len(all[0].Classes) != 2 {
		t.Errorf("%+v; want c and a", all)
	}
	run := onText(t, "--out", out("tokens"), "--steps", "200", "--set",
		"depth=1,width=16,heads=2,dropout=0,classes=400,context=12", "--optimizer", "adam", "--lr", "0.01")
	must(t, run...)
	prompt, other := textFile(t, "d.txt", "The stages of the"), otherTokenizer(t)
	all = predicted(t, out("tokens"), prompt, "--top", "1")
	if len(all) != 1 || !strings.HasPrefix(" pipeline", all[0].Classes[0].Name) ||
		len(all[0].Classes[0].Name) < 2 {
		t.Errorf("%+v; want the beginning of \" pipeline\"", all)
	}
	refuses(t, []string{"eval", out("tokens"), "--data", "text", "--data-dir",
		textFile(t, "e.txt", strings.Repeat("The stages of", 40)), "--window", "8"}, exitUsage, "of bytes")
	sums := []string{"SHA-256"}
	for _, path := range []string{fixtureTokenizer, other} {
		opened := noerr.Get(tokenizer.Open(path))(t)
		sums = append(sums, opened.Sum())
	}
	resumed := with(run, "--resume", "--steps", "201")
	for i, word := range resumed {
		resumed[i] = strings.Replace(word, "tokenizer="+fixtureTokenizer, "tokenizer="+other, 1)
	}
	for _, args := range [][]string{{"eval", out("tokens"), "--data-set", "tokenizer=" + other},
		{"predict", out("tokens"), prompt, "--tokenizer", other}, resumed} {
		refuses(t, args, exitUsage, sums...)
	}
	noerr.Do(t, os.Remove(filepath.Join(out("tokens"), flagsFile)))
	again := predicted(t, out("tokens"), prompt, "--top", "1", "--tokenizer", fixtureTokenizer)
	if len(again) != 1 || again[0].Classes[0] != all[0].Classes[0] {
		t.Errorf("%+v; want %+v", again, all)
	}

	must(t, "train", "--model", "unet", "--set", "B=1,C=4,depth=2", "--data", "synthetic", "--data-set",
		"size=16,classes=4,train=8,test=2", "--batch", "4", "--chunks", "1", "--steps", "1", "--out",
		out("pixels"))
	all = predicted(t, out("pixels"), numbersFile(t, "1, 16, 16", make([]float32, 256)...))
	if len(all) != 1 || len(all[0].Pixels) != 16 || len(all[0].Pixels[15]) != 16 || all[0].Classes != nil {
		t.Errorf("%+v", all)
	}
}

// otherTokenizer is the fixture's with the numbers of two letters exchanged.
func otherTokenizer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"vocab.json", "merges.txt"} {
		content := mustRead(t, filepath.Join(fixtureTokenizer, name))
		if name == "vocab.json" {
			content = bytes.Replace(content, []byte(`"e":`), []byte(`"HELD":`), 1)
			content = bytes.Replace(content, []byte(`"s":`), []byte(`"e":`), 1)
			content = bytes.Replace(content, []byte(`"HELD":`), []byte(`"s":`), 1)
		}
		mustWrite(t, filepath.Join(dir, name), string(content))
	}
	return dir
}

// What is exported are the weights of the checkpoint, under their names; as another type each number is
// the nearest that there is.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	out, whole := filepath.Join(dir, "out"), filepath.Join(dir, "a.safetensors")
	narrow, other := filepath.Join(dir, "b.safetensors"), filepath.Join(dir, "samples.csv")
	must(t, with(small, "--steps", "2", "--model", "resnet20", "--batch", "8", "--data-set",
		"train=16,test=8",
		"--out", out)...)
	says(t, must(t, "export", out, "--out", whole).stdout, " tensors of step 2\n")
	must(t, "export", out, "--out", narrow, "--dtype", "float16")
	exported := opened(t, narrow)
	for name, was := range opened(t, whole) {
		is, want := exported[name], was
		if was.DType != safetensors.I64 {
			want = noerr.Get(safetensors.Convert(was, safetensors.F16))(t)
		}
		if is.DType != want.DType || string(is.Data) != string(want.Data) {
			t.Errorf("%s is %v, or has other numbers; want %v", name, is.DType, want.DType)
		}
	}
	before := tree(t, dir)
	refuses(t, []string{"export", out, "--out", filepath.Join(out, "step-000002", "model.safetensors")},
		exitUsage,
		"would be overwritten")
	refuses(t, []string{"export", out, "--out", other}, exitUsage, "want a FILE.safetensors")
	if after := tree(t, dir); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}

func opened(t *testing.T, path string) map[string]safetensors.Tensor {
	t.Helper()
	f := noerr.Get(safetensors.Open(path))(t)
	defer f.Close()
	all := map[string]safetensors.Tensor{}
	for _, x := range f.Tensors() {
		all[x.Name] = noerr.Get(f.Read(x.Name))(t)
	}
	return all
}

// Rows of a table are predicted from a file and from standard input, with and without the target; and so is a
// text.
func TestPredictFromStandardInput(t *testing.T) {
	table := "a,b,kind\n"
	for i := range 40 {
		table += fmt.Sprintf("%d,%d,%s\n", i, i*i, []string{"even", "odd"}[i%2])
	}
	out := filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "mlp", "--set", "width=8", "--data", "csv", "--data-dir",
		textFile(t, "a.csv", table), "--data-set", "standardise=1", "--batch", "8", "--chunks", "1",
		"--steps", "2", "--out", out)
	predicted := func(stdin, file string) string {
		args := []string{"predict", out, file}
		if stdin == "" {
			return strings.ReplaceAll(must(t, args...).stdout, file, "-")
		}
		return piped(t, stdin, args...).stdout
	}
	want := predicted("", textFile(t, "b.csv", "a,b\n1,1\n2,4\n"))
	if strings.Count(want, "\n") != 2 || !strings.Contains(want, `{"file":"-","row":1,"classes":[{"class":`) {
		t.Errorf("got %s", want)
	}
	for _, rows := range []string{"a,b\n1,1\n2,4\n", "kind,b,a\nodd,1,1\neven,4,2\n"} {
		if got := predicted(rows, "-"); got != want {
			t.Errorf("%q: %s, want %s", rows, got, want)
		}
	}
	refuses(t, []string{"predict", out, "-", "--tokenizer", "x"}, exitUsage,
		"--tokenizer x has no effect without a model of tokens")
	refuses(t, []string{"predict", out, "--prompt", "a"}, exitUsage, "--prompt: mlp is not a model of text")
	text := "the stages of a pipeline"
	out = filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "gpt", "--set", "width=8,depth=1,heads=2", "--data", "text", "--data-dir",
		textFile(t, "a.txt", strings.Repeat(text, 9)), "--window", "8", "--batch", "8", "--chunks", "1",
		"--steps", "1", "--out", out)
	if want := predicted("", textFile(t, "b.txt", text)); predicted(text, "-") != want || want == "" {
		t.Errorf("a text: %s, want %s", predicted(text, "-"), want)
	}
}

// TestPrompt: a model of bytes, with its positions, continues a prompt; drawn texts are the same for a seed.
func TestPrompt(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	text := textFile(t, "text.txt", strings.Repeat("abcdefgh", 400))
	must(t, "train", "--model", "gpt", "--set", "width=32,depth=1,heads=2", "--data", "text", "--data-dir",
		text,
		"--window", "16", "--batch", "16", "--chunks", "2", "--optimizer", "adam", "--lr", "0.01",
		"--epochs", "8",
		"--out", out)
	if r := must(t, "predict", out, "--prompt", "abcdef", "--tokens", "10"); r.stdout != "ghabcdefgh\n" {
		t.Errorf("%q", r.stdout)
	}
	drawn := func(seed string) string {
		return must(t, "predict", out, "--prompt", "abc", "--tokens", "12", "--temperature", "9", "--seed",
			seed).stdout
	}
	if first := drawn("1"); first != drawn("1") || first == drawn("2") {
		t.Errorf("%q for seed 1", first)
	}
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"predict", out, "--prompt", "abc", "--tokens", "14"},
			"the model reads at most 16 together"},
		{[]string{"predict", out, "--prompt", "", "--tokens", "3"}, "the prompt has no tokens"},
		{[]string{"predict", out, "--prompt", "a", "--seed", "3"},
			"--seed 3 has no effect without --temperature"},
		{[]string{"predict", out, text, "--tokens", "3"}, "--tokens 3 has no effect without --prompt"},
		{[]string{"predict", out, "--prompt", "a", "--stages", "2"},
			"--stages 2 has no effect without FILE..."},
	} {
		if r := command(t, row.args...); r.code == exitDone || !strings.Contains(r.stderr, row.want) {
			t.Errorf("%q: %+v", row.args, r)
		}
	}
}
