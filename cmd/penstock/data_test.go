package main

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/models"
)

// imageSettings are images that models take which the usual 28 x 28 are too small for.
var imageSettings = map[string]string{
	"unet": "size=64,channels=3", "inception_v3": "size=75", "amoebanetd": "size=32", "densenet": "size=32", "vgg": "size=32",
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
		cmd := newTrain(nil)
		cmd.ResetFlags()
		flags.register(cmd)
		if err := cmd.ParseFlags(with(dataFor(name), "--model", name, "--data", "synthetic")); err != nil {
			t.Fatal(err)
		}
		p, err := flags.plan(cmd.Flags(), os.Getenv)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		j := &job{plan: p.members()[0]}
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
		line := with([]string{"train", "--data", "synthetic", "--batch", "2", "--chunks", "1", "--steps", "1", "--data-set", "train=4,test=2", "--format", "json"}, args...)
		steps, done := lines(t, must(t, line...).stdout)
		if len(steps) != 1 || steps[0].Loss < 0.3 || steps[0].Loss > 9 || done.TestAccuracy < 0 || done.TestAccuracy > 1 {
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
		{[]string{"--model", "unet"}, []string{"--model unet with --data synthetic: unet: Size is 28; want at least 64", "--data-set size=192 makes images of the model's usual size"}},
		{[]string{"--model", "inception_v3"}, []string{"--data-set size=299"}},
		{[]string{"--model", "unet", "--data", "cifar10", "--data-dir", "x"}, []string{"--model unet is for segmentation, and --data cifar10 for classification; want --data synthetic"}},
		{[]string{"--model", "mlp", "--data-set", "sizes=3"}, []string{"--data-set sizes=3: want one of the data set's options; synthetic has size=28, channels=1"}},
		{[]string{"--model", "mlp", "--data-set", "size=9", "--set", "size=8"}, []string{"--set size=8: --data synthetic has 9; leave it out"}},
		{[]string{"--model", "gpt", "--data", "text", "--data-dir", "x", "--data-set", "size=9"}, []string{"--data-set size=9: want", "text has holdout=0.1"}},
		{[]string{"--model", "gpt", "--window", "9"}, []string{"--window 9"}},
	} {
		refuses(t, with([]string{"train", "--data", "synthetic", "--steps", "1"}, row.args...), exitUsage, row.parts...)
	}
}

// A run that is resumed has the data of then.
func TestResumeRefusesOtherDataSettings(t *testing.T) {
	out := t.TempDir()
	first := with(small, "--data-set", "classes=4", "--steps", "1", "--out", out)
	must(t, first...)
	refuses(t, with(small, "--data-set", "classes=5", "--steps", "2", "--out", out, "--resume"), exitFailed,
		`data.settings.chosen.classes is "4" there and "5" here; resume with the --data-set of then`)
	must(t, with(small, "--data-set", "classes=4", "--steps", "2", "--out", out, "--resume")...)
}

// folderOf is a directory of two classes of pictures, which brightness tells apart.
func folderOf(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for class, name := range []string{"dark", "light"} {
		if err := os.Mkdir(filepath.Join(directory, name), 0o777); err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			p := image.NewGray(image.Rect(0, 0, 20, 16))
			for k := range p.Pix {
				p.Pix[k] = byte(120*class + (k*i)%100)
			}
			var b bytes.Buffer
			if err := png.Encode(&b, p); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(directory, name, fmt.Sprintf("%d.png", i)), b.Bytes(), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	return directory
}

// A folder of pictures is learnt from, with the same weights on any cut, augmentation and all; a
// damaged one ends the run with its name.
func TestTrainsOnImages(t *testing.T) {
	directory := folderOf(t)
	line := []string{"train", "--model", "mlp", "--data", "images", "--data-dir", directory, "--data-set", "size=12,crop=1,flip=1,scale=0.5",
		"--batch", "7", "--chunks", "2", "--epochs", "12", "--lr", "0.02", "--format", "json"}
	_, one := lines(t, must(t, line...).stdout)
	_, two := lines(t, must(t, with(line, "--balance", "2,4")...).stdout)
	if one.ParamsSHA256 != two.ParamsSHA256 {
		t.Error("two stages give other weights than one")
	}
	if one.TestAccuracy != 1 {
		t.Errorf("accuracy %v", one.TestAccuracy)
	}
	for i := range 8 {
		if err := os.WriteFile(filepath.Join(directory, "dark", fmt.Sprintf("%d.png", i)), []byte("\x89PNG\r\n\x1a\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	refuses(t, line, exitFailed, filepath.Join(directory, "dark", "0.png")+": ", "want a PNG, JPEG or GIF that is whole: replace the file, or remove it")
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
