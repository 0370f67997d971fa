package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/models"
)

// imageSettings are images that models take which the usual 28 x 28 are too small for.
var imageSettings = map[string]string{
	"vit_": "size=224,channels=3", "unet": "size=64,channels=3", "inception_v3": "size=75",
	"amoebanetd": "size=32", "densenet": "size=32", "vgg": "size=32",
}

func dataFor(model string) (args []string) {
	for name, settings := range imageSettings {
		if strings.HasPrefix(model, name) {
			return []string{"--data-set", settings}
		}
	}
	return nil
}

// Every model fits synthetic data: the command line is accepted, and data and model go together.
func TestSyntheticFitsEveryModel(t *testing.T) {
	for _, name := range models.Names() {
		var flags trainFlags
		cmd := newTrain(nil, nil, nil)
		cmd.ResetFlags()
		flags.register(cmd)
		noerr.Do(t, cmd.ParseFlags(with(dataFor(name), "--model", name, "--data", "synthetic")))
		p, err := flags.check(cmd.Flags(), os.Getenv)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		j := &job{runOptions: p.members()[0]}
		if err := j.openData(t.Context(), io.Discard); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A network of each kind takes a step on synthetic data, with a loss that is that of guessing, more
// or less.
func TestTrainsOnSynthetic(t *testing.T) {
	for _, args := range [][]string{
		{"--model", "unet", "--set", "B=1,C=4,depth=2", "--data-set", "size=16,channels=3,classes=4"},
		{"--model", "unet", "--set", "B=1,C=4", "--data-set", "size=64,classes=4"},
		{"--model", "inception_v3", "--data-set", "size=75,channels=3,classes=4"},
		{"--model", "amoebanetd", "--set", "L=3,D=16", "--data-set", "size=32,channels=3,classes=4"},
		{"--model", "gpt", "--set", "depth=1,width=8,heads=1", "--data-set", "size=12,classes=4"},
		{"--model", "densenet121", "--data-set", "size=32,classes=4"},
	} {
		line := with([]string{"train", "--data", "synthetic", "--batch", "2", "--chunks", "1", "--steps",
			"1", "--data-set", "train=4,test=2", "--format", "json"}, args...)
		steps, done := lines(t, must(t, line...).stdout)
		if len(steps) != 1 || steps[0].Loss < 0.3 || steps[0].Loss > 9 || *done.TestAccuracy < 0 ||
			*done.TestAccuracy > 1 {
			t.Errorf("%v: %+v, %+v", args, steps, done)
		}
	}
}

// What data and model cannot have in common is said with what to give instead.
func TestRefusesDataSettings(t *testing.T) {
	for _, row := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"--model", "unet"}, []string{"--model unet with --data synthetic: unet: Size is 28; want " +
			"at least 64"}},
		{[]string{"--model", "unet", "--data", "cifar10", "--data-dir", "x"},
			[]string{"--model unet is for segmentation, and --data cifar10 for classification; want " +
				"another of the two"}},
		{[]string{"--model", "mlp", "--data-set", "sizes=3"},
			[]string{"--data-set sizes=3: did you mean size? want one of its options; synthetic has " +
				"size=28, channels=1"}},
		{[]string{"--model", "mlp", "--data-set", "size=9", "--set", "size=8"},
			[]string{"--set size=8: --data synthetic has 9; leave it out"}},
		{[]string{"--model", "gpt", "--data", "text", "--data-dir", "x", "--data-set", "size=9"},
			[]string{"--data-set size=9: want", "text has tokenizer=none, bytes, holdout=0.1"}},
		{[]string{"--model", "mlp", "--out", t.TempDir() + "/caf\xe9"},
			[]string{"the command line, line 1, column ", ": byte 0xe9 is not UTF-8"}},
	} {
		refuses(t, with([]string{"train", "--data", "synthetic", "--steps", "1"}, row.args...), exitUsage,
			row.parts...)
	}
}

// A run that is resumed has the data of then.
func TestResumeRefusesOtherDataSettings(t *testing.T) {
	out := t.TempDir()
	first := with(small, "--data-set", "classes=4", "--steps", "1", "--out", out)
	must(t, first...)
	refuses(t, with(small, "--data-set", "classes=5", "--steps", "2", "--out", out, "--resume"), exitUsage,
		`data.settings.chosen.classes is "4" there and "5" here; resume with the saved flags and data`)
	must(t, with(small, "--data-set", "classes=4", "--steps", "2", "--out", out, "--resume")...)
}

// folderOf is a directory of two classes of pictures, which brightness tells apart.
func folderOf(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for class, name := range []string{"dark", "light"} {
		noerr.Do(t, os.Mkdir(filepath.Join(directory, name), 0o777))
		for i := range 8 {
			p := image.NewGray(image.Rect(0, 0, 20, 16))
			for k := range p.Pix {
				p.Pix[k] = byte(120*class + (k*i)%100)
			}
			var b bytes.Buffer
			noerr.Do(t, png.Encode(&b, p))
			noerr.Do(t, os.WriteFile(filepath.Join(directory, name, fmt.Sprintf("%d.png", i)), b.Bytes(), 0o666))
		}
	}
	return directory
}

// A folder of pictures is learnt from, with the same weights on any cut, augmentation and all; a
// damaged one ends the run with its name.
func TestTrainsOnImages(t *testing.T) {
	directory := folderOf(t)
	line := []string{"train", "--model", "mlp", "--data", "images", "--data-dir", directory, "--data-set",
		"size=12,crop=1,flip=1,scale=0.5",
		"--batch", "7", "--chunks", "2", "--epochs", "12", "--lr", "0.02", "--format", "json"}
	_, one := lines(t, must(t, line...).stdout)
	_, two := lines(t, must(t, with(line, "--balance", "2,4")...).stdout)
	if one.ParamsSHA256 != two.ParamsSHA256 {
		t.Error("two stages give other weights than one")
	}
	if *one.TestAccuracy != 1 {
		t.Errorf("accuracy %v", *one.TestAccuracy)
	}
	for i := range 8 {
		noerr.Do(t, os.WriteFile(filepath.Join(directory, "dark", fmt.Sprintf("%d.png", i)),
			[]byte("\x89PNG\r\n\x1a\n"), 0o666))
	}
	refuses(t, line, exitUsage, filepath.Join(directory, "dark", "0.png")+": ",
		"want a PNG, JPEG or GIF that is whole: replace the file, or remove it")
}

// Rows of numbers are learnt from: classes with an accuracy, and numbers with a mean squared error,
// which is in the metrics too. Tokens are read as text is.
func TestTrainsOnFilesOfOnesOwn(t *testing.T) {
	var classes, amounts strings.Builder
	tokens := make([]byte, 0, 2000)
	for i := range 200 {
		x, y := i%20, i/20
		fmt.Fprintf(&classes, "%d,%d,%s\n", x, y, []string{"left", "right"}[x/10])
		fmt.Fprintf(&amounts, "%d,%d,%g\n", x, y, 0.1*float64(x)-0.3*float64(y))
		tokens = append(tokens, byte(x), 0, byte(y), 0)
	}
	line := func(model, name, file, content string, more ...string) []string {
		return with([]string{"train", "--model", model, "--data", name, "--data-dir",
			textFile(t, file, content), "--batch", "20",
			"--chunks", "2", "--stages", "2", "--optimizer", "adam", "--format", "json"}, more...)
	}
	_, done := lines(t, must(t, line("mlp", "csv", "a.csv", classes.String(), "--set", "width=16",
		"--data-set", "standardise=1", "--epochs", "8", "--lr", "0.01")...).stdout)
	if *done.TestAccuracy < 0.9 {
		t.Errorf("accuracy %v", *done.TestAccuracy)
	}
	out := t.TempDir()
	r := must(t, line("mlp", "csv", "b.csv", amounts.String(), "--set", "width=16", "--data-set",
		"standardise=1,task=regression", "--epochs", "20", "--lr", "0.01", "--test-every", "50", "--out",
		out)...)
	var end struct {
		MSE      *float64 `json:"test_mse"`
		Accuracy *float64 `json:"test_accuracy"`
	}
	all := strings.Split(strings.TrimSpace(r.stdout), "\n")
	noerr.Do(t, json.Unmarshal([]byte(all[len(all)-1]), &end))
	if end.MSE == nil || *end.MSE > 0.1 || end.Accuracy != nil {
		t.Errorf("the end says %s", all[len(all)-1])
	}
	measured, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if want := fmt.Sprintf(`"mse":%v}`, *end.MSE); err != nil ||
		strings.Count(string(measured), `"mse":`) != 4 || !strings.Contains(string(measured), want) {
		t.Errorf("%v, no %s in %s", err, want, measured)
	}
	_, done = lines(t, must(t, line("gpt", "tokens", "a.bin", string(tokens), "--set",
		"depth=1,width=8,heads=1", "--window", "7", "--epochs", "1")...).stdout)
	if done.Steps != 3 { // 400 tokens are 50 samples, 45 to train with
		t.Errorf("%d steps", done.Steps)
	}
	refuses(t, line("mlp", "csv", "c.csv", "1,2,3\n1,2\n"), exitUsage,
		"c.csv: record on line 2: wrong number of fields; want as many values as in the first line")
	refuses(t, line("mlp", "npy", "c.npy", ""), exitUsage, "name a directory with x.npy and y.npy")
	refuses(t, line("gpt", "csv", "c.csv", "1,2,3\n"), exitUsage,
		"--model gpt is for next token, and --data csv for classification")
}

// refuses fails unless a command line ends with this code and says all parts.
func refuses(t *testing.T, args []string, code int, parts ...string) {
	t.Helper()
	r := command(t, args...)
	if r.code != code {
		t.Errorf("%q: exit code %d, want %d; stderr:\n%s", args, r.code, code, r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("%q: no %q in stderr:\n%s", args, part, r.stderr)
		}
	}
}
