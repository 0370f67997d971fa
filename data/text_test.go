package data_test

import (
	"bytes"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
	"penstock.example/internal/must"
	"penstock.example/tokenizer"
)

func TestText(t *testing.T) {
	set := must.Get(data.NewText([]byte("abcdefgh\xff"), 3))(t)
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
}

const fixture = "../tokenizer/testdata"

// With a tokenizer a text is its tokens, each file's by itself.
func TestTextTokens(t *testing.T) {
	tok := must.Get(tokenizer.Open(fixture))(t)
	var want []int64
	for _, text := range []string{"the stages of the pipe", "line and the stages\n<|endoftext|>"} {
		ids := must.Get(tok.Encode([]byte(text)))(t)
		for _, id := range ids {
			want = append(want, int64(id))
		}
	}
	directory := directoryOf(t, map[string][]byte{"a.txt": []byte("the stages of the pipe"), "b.txt": []byte("line and the stages\n<|endoftext|>")})
	options := data.Options{Window: 1}
	must.Do(t, data.Set("text", &options, []string{"tokenizer=" + fixture, "holdout=0.2"}))
	train, test, err := data.Open("text", directory, options)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, set := range []data.Dataset{train, test} {
		if info := set.Info(); info.Classes != 377 || info.Task() != data.NextToken {
			t.Errorf("%+v", info)
		}
		for i := range set.Len() {
			b := fill(t, set, i)
			got = append(got, b.Input.Int64[0], b.Target.Int64[0])
		}
	}
	if len(got) < len(want)-1 || !slices.Equal(got, want[:len(got)]) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	files, err := data.Files("text", directory, options)
	if want := []string{filepath.Join(directory, "a.txt"), filepath.Join(directory, "b.txt"), filepath.Join(fixture, "tokenizer.json")}; err != nil || !slices.Equal(files, want) {
		t.Errorf("%v, %v, want %v", files, err, want)
	}
}

func TestNewTokens(t *testing.T) {
	_, err := data.NewTokens([]int32{0, 4, 1}, 4, 1)
	wantError(t, err, "token 1 is 4; want 0 to 3")
	set, err := data.NewTokens([]int32{0, 3, 1}, 4, 1)
	if err != nil || set.Len() != 1 || !slices.Equal(fill(t, set, 0).Target.Int64, []int64{3}) {
		t.Errorf("%v, %v", set, err)
	}
}

// Another tokenizer than the one that a model was trained with is refused, by both sums. Where that one is not
// known, it is taken.
func TestLikeTokenizer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txt")
	writeFile(t, path, []byte("The stages of the pipeline are busy."))
	tok := must.Get(tokenizer.Open(fixture))(t)
	for was, refused := range map[string]bool{"": false, tok.Sum(): false, "other": true} {
		like := data.Info{Classes: tok.Len(), Source: data.Int64, Tokenizer: was, Input: data.Spec{Kind: data.Int64, Shape: []int64{2}}, Target: data.Spec{Kind: data.Int64, Shape: []int64{2}}}
		set, _, err := data.Open("text", path, data.Options{Window: 2, Tokenizer: fixture, TrainedOn: &like})
		_, err2 := data.NewInputs(like, tok, []string{path})
		if refused {
			wantError(t, err, fixture, tok.Sum(), "those of other")
			wantError(t, err2, tok.Sum(), "those of other")
		} else if err != nil || err2 != nil || set.Info().Tokenizer != tok.Sum() {
			t.Errorf("%q: %v, %v", was, err, err2)
		}
	}
}
