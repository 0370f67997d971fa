package data_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/data"
)

func TestText(t *testing.T) {
	set, err := data.NewText([]byte("abcdefgh\xff"), 3)
	if err != nil {
		t.Fatal(err)
	}
	if set.Len() != 2 || set.Info().Classes != 256 || !slices.Equal(set.Info().Input.Shape, []int64{3}) || !slices.Equal(set.Info().Target.Shape, []int64{3}) {
		t.Errorf("%d samples of %+v", set.Len(), set.Info())
	}
	batch := fill(t, set, 1, 0)
	if want := []int64{'e', 'f', 'g', 'a', 'b', 'c'}; !slices.Equal(batch.Input.Int64, want) {
		t.Errorf("inputs %v, want %v", batch.Input.Int64, want)
	}
	if want := []int64{'f', 'g', 'h', 'b', 'c', 'd'}; !slices.Equal(batch.Target.Int64, want) {
		t.Errorf("targets %v, want %v", batch.Target.Int64, want)
	}
	if want := []int64{2, 3}; !slices.Equal(batch.Input.Shape, want) || !slices.Equal(batch.Target.Shape, want) {
		t.Errorf("shapes %v and %v, want %v", batch.Input.Shape, batch.Target.Shape, want)
	}
}

// TestTextSplit: the samples to train and to test with, one after the other, are the text but for
// less than a sample.
func TestTextSplit(t *testing.T) {
	directory := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		window := rapid.IntRange(1, 9).Draw(r, "window")
		content := rapid.SliceOfN(rapid.Byte(), 2*(window+1), 300).Draw(r, "content")
		holdout := rapid.Float64Range(0.01, 0.99).Draw(r, "holdout")
		path := filepath.Join(directory, "text")
		writeFile(t, path, content)

		train, test, err := data.Open("text", path, data.Options{Window: window, Holdout: holdout})
		if err != nil {
			r.Fatal(err)
		}
		var all []byte
		for _, set := range []data.Dataset{train, test} {
			if set.Len() < 1 {
				r.Fatalf("%d samples to train and %d to test", train.Len(), test.Len())
			}
			for i := range set.Len() {
				batch := fill(t, set, i)
				all = append(all, byte(batch.Input.Int64[0]))
				for _, target := range batch.Target.Int64 {
					all = append(all, byte(target))
				}
			}
		}
		if !bytes.HasPrefix(content, all) || len(content)-len(all) > window {
			r.Fatalf("the samples hold %q of %q", all, content)
		}
		samples := float64(train.Len() + test.Len())
		if share := float64(test.Len()) / samples; math.Abs(share-holdout) > 1/samples {
			r.Fatalf("%d of %v samples are held out, want a share of %v", test.Len(), samples, holdout)
		}
	})
}

func TestOpenText(t *testing.T) {
	directory := directoryOf(t, map[string][]byte{
		"b.txt": bytes.Repeat([]byte("b"), 200), "a.txt": bytes.Repeat([]byte("a"), 100),
		"notes.md": []byte("not this"), "sub.txt/c.txt": []byte("nor this"),
	})
	train, test, err := data.Open("text", directory, data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 1 || test.Len() != 1 { // 300 bytes are two samples of 129
		t.Errorf("%d samples to train and %d to test, want 1 each", train.Len(), test.Len())
	}
	if input := fill(t, train, 0).Input.Int64; len(input) != 128 || input[99] != 'a' || input[100] != 'b' {
		t.Errorf("the files are not joined in the order of their names: %v", input)
	}

	_, _, err = data.Open("text", "", data.Options{})
	wantError(t, err, "text has no usual place", "--data-dir")
	_, _, err = data.Open("text", filepath.Join(directory, "none"), data.Options{})
	wantError(t, err, filepath.Join(directory, "none"), "--data-dir")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v is not fs.ErrNotExist", err)
	}
	empty := t.TempDir()
	_, _, err = data.Open("text", empty, data.Options{})
	wantError(t, err, "no .txt file in "+empty)
	_, _, err = data.Open("text", directory, data.Options{Window: 300})
	wantError(t, err, "300 bytes, expected at least 301", directory)
	_, _, err = data.Open("text", directory, data.Options{Window: 200})
	wantError(t, err, "has 300 bytes, expected at least 402")
	_, _, err = data.Open("text", directory, data.Options{Window: -1})
	wantError(t, err, "Window is -1; want at least 1")
	for _, holdout := range []float64{-0.1, 1, math.NaN()} {
		_, _, err = data.Open("text", directory, data.Options{Holdout: holdout})
		wantError(t, err, "want a share between 0 and 1", "between 0 and 1")
	}
}
