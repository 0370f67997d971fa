package data_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
	"penstock.example/internal/must"
	"penstock.example/tokenizer"
)

func TestText(t *testing.T) {
	set := must.Get(data.NewText("abcdefgh\xff", 3))(t)
	if set.Len() != 2 || set.Info().Classes != 256 || !slices.Equal(set.Info().Input.Shape, []int64{3}) ||
		!slices.Equal(set.Info().Target.Shape, []int64{3}) {
		t.Errorf("%d samples of %+v", set.Len(), set.Info())
	}
	batch := fill(t, set, 1, 0)
	if want := []int64{'e', 'f', 'g', 'a', 'b', 'c'}; !slices.Equal(batch.Input.Int64, want) {
		t.Errorf("inputs %v, want %v", batch.Input.Int64, want)
	}
	if want := []int64{'f', 'g', 'h', 'b', 'c', 'd'}; !slices.Equal(batch.Target.Int64, want) {
		t.Errorf("targets %v, want %v", batch.Target.Int64, want)
	}
	if want := []int64{2, 3}; !slices.Equal(batch.Input.Shape, want) ||
		!slices.Equal(batch.Target.Shape, want) {
		t.Errorf("shapes %v and %v, want %v", batch.Input.Shape, batch.Target.Shape, want)
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
	directory := directoryOf(t, map[string][]byte{"a.txt": []byte("the stages of the pipe"),
		"b.txt": []byte("line and the stages\n<|endoftext|>")})
	options := data.Options{Window: 1}
	must.Do(t, data.Set("text", &options, []string{"tokenizer=" + fixture, "holdout=0.2"}))
	train, test := open(t, "text", directory, options)
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
	if want := []string{filepath.Join(directory, "a.txt"), filepath.Join(directory, "b.txt"),
		filepath.Join(fixture, "tokenizer.json")}; err != nil || !slices.Equal(files, want) {
		t.Errorf("%v, %v, want %v", files, err, want)
	}
}

// Another tokenizer than the one that a model was trained with is refused, by both sums. Where that one
// is not known, it is taken.
func TestLikeTokenizer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txt")
	writeFile(t, path, []byte("The stages of the pipeline are busy."))
	tok := must.Get(tokenizer.Open(fixture))(t)
	for was, refused := range map[string]bool{"": false, tok.Sum(): false, "other": true} {
		like := data.Info{Classes: tok.Len(), Source: data.Int64, Tokenizer: was,
			Input: data.Spec{Kind: data.Int64, Shape: []int64{2}}, Target: data.Spec{Kind: data.Int64,
				Shape: []int64{2}}}
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

func tokenBytes[T uint16 | uint32](tokens ...T) []byte {
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, tokens)
	return b.Bytes()
}

// A sample is window tokens and those that follow each; the last samples are to test with.
func TestTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.bin")
	rapid.Check(t, func(r *rapid.T) {
		window := rapid.IntRange(1, 5).Draw(r, "window")
		all := rapid.SliceOfN(rapid.Uint32Range(0, 60000), 2*(window+1), 60).Draw(r, "tokens")
		o := data.Options{Window: window, Holdout: 0.3,
			TokenBytes: rapid.SampledFrom([]int{0, 2, 4}).Draw(r, "width")}
		content := tokenBytes(all...)
		if o.TokenBytes != 4 {
			var narrow []uint16
			for _, x := range all {
				narrow = append(narrow, uint16(x))
			}
			content = tokenBytes(narrow...)
		}
		writeFile(t, path, content)
		train, test := open(r, "tokens", path, o)
		if train.Len()+test.Len() != len(all)/(window+1) || train.Info().Task() != data.NextToken ||
			train.Info().Classes != int(slices.Max(all))+1 {
			r.Fatalf("%d and %d samples of %+v", train.Len(), test.Len(), train.Info())
		}
		for i := range train.Len() + test.Len() {
			set, k := train, i
			if i >= train.Len() {
				set, k = test, i-train.Len()
			}
			b := fill(t, set, k)
			for j := range window {
				if at := i*(window+1) + j; b.Input.Int64[j] != int64(all[at]) ||
					b.Target.Int64[j] != int64(all[at+1]) {
					r.Fatalf("sample %d: %v, %v", i, b.Input.Int64, b.Target.Int64)
				}
			}
		}
	})
	directory := directoryOf(t, map[string][]byte{"train.bin": tokenBytes[uint16](1, 2, 3, 4),
		"val.bin": tokenBytes[uint16](5, 6)})
	train, test := open(t, "tokens", directory, data.Options{Window: 1})
	if train.Len() != 2 || test.Len() != 1 || train.Info().Classes != 7 ||
		test.Info().Classes != 7 {
		t.Errorf("train.bin and val.bin: %v, %v", train, test)
	}
}

func csvFile(t *testing.T, lines ...string) string {
	path := filepath.Join(t.TempDir(), "a.csv")
	writeFile(t, path, []byte(strings.Join(lines, "\n")+"\n"))
	return path
}

func TestOpenCSV(t *testing.T) {
	for name, row := range map[string]struct {
		lines  []string
		csv    data.CSV
		task   data.Task
		first  []float32 // the first sample
		label  float64
		names  []string
		length int
	}{
		"names": {[]string{"a,b,kind", "1,2,cat", "3,4.5,dog", "5,6,cat"}, data.CSV{},
			data.Classification, []float32{1, 2}, 0, []string{"cat", "dog"}, 3},
		"no header": {[]string{"1,2,10", "3,4,9", "5,6,10"}, data.CSV{}, data.Classification,
			[]float32{1, 2}, 1, []string{"9", "10"}, 3},
		"regression": {[]string{"a,b,price", "1,2,1.5", "3,4,9", "5,6,7"}, data.CSV{}, data.Regression,
			[]float32{1, 2}, 1.5, nil, 3},
		"amounts": {[]string{"1,2,10", "3,4,9", "5,6,10"}, data.CSV{Task: data.Regression},
			data.Regression, []float32{1, 2}, 10, nil, 3},
		"column by name": {[]string{"a,b,c", "1,2,3", "0,4,6"}, data.CSV{Target: "a"}, data.Classification,
			[]float32{2, 3}, 1, []string{"0", "1"}, 2},
		"by number": {[]string{"1,2,3", "0,4,6"}, data.CSV{Target: "2"}, data.Classification,
			[]float32{1, 3}, 0, []string{"2", "4"}, 2},
		"header given": {[]string{"1,2,3", "5,6,cat", "7,8,dog"}, data.CSV{Header: new(true)},
			data.Classification, []float32{5, 6}, 0, []string{"cat", "dog"}, 2},
		"quotes, spaces": {[]string{"\ufeffa; b; \"c;d\"", "\"1\"; 2; x", " 3;4;y", "", "5;6;y"},
			data.CSV{Separator: ';', Target: "c;d"}, data.Classification, []float32{1, 2}, 0, []string{"x",
				"y"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			train, test := open(t, "csv", csvFile(t, row.lines...),
				data.Options{CSV: row.csv, Holdout: 0.01, Seed: seedThatKeeps(t, name)})
			info := train.Info()
			if train.Len()+test.Len() != row.length || info.Task() != row.task ||
				!slices.Equal(info.ClassNames, row.names) ||
				!slices.Equal(info.Input.Shape, []int64{2, 1, 1}) {
				t.Errorf("%d and %d samples of %+v", train.Len(), test.Len(), info)
			}
			samples := [][2]any{}
			for _, set := range []data.Dataset{train, test} {
				for i := range set.Len() {
					b := fill(t, set, i)
					label := 0.0
					if row.task == data.Regression {
						label = float64(b.Target.Float32[0])
					} else {
						label = float64(b.Target.Int64[0])
					}
					samples = append(samples, [2]any{fmt.Sprint(b.Input.Float32), label})
				}
			}
			if !slices.Contains(samples, [2]any{fmt.Sprint(row.first), row.label}) {
				t.Errorf("samples %v, want %v %v among them", samples, row.first, row.label)
			}
		})
	}
}

func TestCSVStandardises(t *testing.T) {
	directory := directoryOf(t, map[string][]byte{"train.csv": []byte("1,7,0\n3,7,1\n5,7,1\n"),
		"test.csv": []byte("3,8,1\n")})
	train, test := open(t, "csv", directory, data.Options{CSV: data.CSV{Standardise: true}})
	one := float32(2 / math.Sqrt(8.0/3))
	if got := fill(t, train, 0, 1, 2).Input.Float32; !slices.Equal(got, []float32{-one, 0, 0, 0, one, 0}) {
		t.Errorf("to train with %v", got)
	}
	if got := fill(t, test, 0).Input.Float32; !slices.Equal(got, []float32{0, 1}) {
		t.Errorf("to test with %v", got)
	}
}

// Rows are made as others were: standardised by their numbers, with the columns of the same names, their
// classes and their task. An .npy of rows is so as well.
func TestTrainedOn(t *testing.T) {
	like := data.Info{Classes: 3, ClassNames: []string{"x", "y", "z"}, Source: data.Float32,
		Mean: []float64{1, 10}, Std: []float64{2, 4},
		Columns: []string{"a", "b", "kind"}, Input: data.Spec{Kind: data.Float32,
			Shape: []int64{2, 1, 1}}, Target: data.Spec{Kind: data.Int64}}
	train, test := open(t, "csv", csvFile(t, "kind,b,a", "z,18,5", "z,18,5"),
		data.Options{TrainedOn: &like})
	for _, set := range []data.Dataset{train, test} {
		if b := fill(t, set, 0); !slices.Equal(b.Input.Float32, []float32{2, 2}) ||
			b.Target.Int64[0] != 2 || !slices.Equal(set.Info().ClassNames, like.ClassNames) {
			t.Errorf("%+v of %+v", b, set.Info())
		}
	}
	for lines, part := range map[string]string{
		"kind,b,c\nz,1,2":     "the columns are kind, b, c, and the model was trained with a, b, kind",
		"kind,b\nz,1":         "the columns are kind, b, and the model was trained with a, b, kind",
		"a,b,kind\n1,2,other": `"other" is no class to train with; the classes are x, y, z`,
	} {
		if _, _, err := data.Open("csv", csvFile(t, lines), data.Options{TrainedOn: &like}); err == nil ||
			!strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v; want %q", lines, err, part)
		}
	}
	directory := t.TempDir()
	writeFile(t, filepath.Join(directory, "x.npy"), npyOf("<f4", []float32{5, 18, 5, 18}, 2, 2))
	writeFile(t, filepath.Join(directory, "y.npy"), npyOf("<i8", []int64{1, 1}, 2))
	rows, _ := open(t, "npy", directory, data.Options{TrainedOn: &like})
	if b := fill(t, rows, 0); !slices.Equal(b.Input.Float32, []float32{2, 2}) || rows.Info().Classes != 3 {
		t.Errorf("%+v of %+v", b, rows.Info())
	}
}

// Rows of a table to predict are those of the training set, with and without the target's column,
// whatever the order of named columns and the separator.
func TestInputsOfTables(t *testing.T) {
	rows := []float32{-1, 1, 1, -1}
	for name, test := range map[string]struct{ table, set, inputs string }{
		"names":             {"a,b,y\n1,20,no\n3,10,yes\n", "", "b;a;more\n20;1;x\n10;3;x\n"},
		"names and target":  {"a,b,y\n1,20,no\n3,10,yes\n", "", "y,a,b\nno,1,20\nno,3,10\n"},
		"numbers":           {"1,20,0\n3,10,1\n", "header=0", "1,20\n3,10\n"},
		"numbers, target":   {"1,20,0\n3,10,1\n", "header=0", "1\t20\t0\n3\t10\t0\n"},
		"target in front":   {"0,1,20\n1,3,10\n", "header=0,target=1", "0,1,20\n1,3,10\n"},
		"names are numbers": {"0,1,label\n1,20,no\n3,10,yes\n", "header=1", "1,0\n20,1\n10,3\n"},
		"large numbers": {"a,b,y\n1700000000,20,no\n1700000002,10,yes\n", "",
			"a,b\n1700000000,20\n1700000002,10\n"},
	} {
		var o data.Options
		must.Do(t, data.Set("csv", &o, []string{strings.TrimSuffix("standardise=1,"+test.set, ",")}))
		path := filepath.Join(t.TempDir(), "train.csv")
		writeFile(t, path, []byte(test.table))
		writeFile(t, filepath.Join(filepath.Dir(path), "test.csv"), []byte(test.table))
		set, _, err := data.Open("csv", filepath.Dir(path), o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		inputs := filepath.Join(t.TempDir(), "inputs.csv")
		writeFile(t, inputs, []byte(test.inputs))
		x := must.Get(data.NewInputs(set.Info(), nil, []string{inputs}))(t)
		var batch data.Batch
		must.Do(t, x.Fill(&batch, []int{0, 1}))
		if !slices.Equal(batch.Input.Float32, rows) {
			t.Errorf("%s: %v, want %v", name, batch.Input.Float32, rows)
		}
		writeFile(t, inputs, []byte("c,d,e,f\n1,2,3,4\n"))
		_, err = data.NewInputs(set.Info(), nil, []string{inputs})
		wantError(t, err, "inputs.csv: line 1: it has 4 columns; want ")
	}
}
