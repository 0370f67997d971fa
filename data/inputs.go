package data

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image"
	"os"
	"slices"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/tokenizer"
)

// Inputs is a Dataset of inputs in files for a trained model. They are converted like the samples that the
// model was trained on. Targets are zeros.
type Inputs struct {
	info   Info
	tables [][256]float32 // of pictures and bytes
	inputs []input
}

// input is a sample: a picture in a file if tokens and floats are nil.
type input struct {
	path   string
	row    int
	tokens []int64
	floats []float32
}

// NewInputs reads inputs from files for a model trained on the samples that info describes:
//
//	pictures   PNG, JPEG or GIF, if Info.Source is Uint8; resized and normalised like the samples
//	text       Info.Begin and the file's tokens by the tokenizer t, which must be the training set's
//	           (Info.Tokenizer). The file's bytes if the set has bytes and t is nil
//	.npy       one or more rows of kind Info.Source; numbers are normalised by Info.Mean and Info.Std
//	tables     for inputs [columns 1 1] of numbers: values separated by commas, semicolons or tabs.
//	           Columns are found by Info.Columns, and other columns are ignored. A table without names
//	           has the inputs' columns, and may have the target's
//
// The path - is standard input, which cannot be a picture.
//
// A sample has the last tokens of a text or row. Shorter inputs are followed by zeros; see Length.
// NewInputs reads text and arrays, and the header of pictures; Fill reads the pictures. Errors name the
// file.
func NewInputs(info Info, t *tokenizer.Tokenizer, paths []string) (_ *Inputs, err error) {
	defer func() { err = named("inputs", err) }()
	x := &Inputs{info: info}
	if len(paths) == 0 {
		return nil, errors.New("no files; want at least one")
	}
	if t != nil {
		if info.Input.Kind != Int64 || info.Source == Uint8 || t.Len() != info.Classes {
			return nil, fmt.Errorf("the tokenizer has %d tokens, and the model is for %d classes of %s; "+
				"want the tokenizer that the set was made with", t.Len(), info.Classes, info.Name)
		}
		if err := info.checkTokenizer(t.Sum()); err != nil {
			return nil, err
		}
	}
	if info.Source == Uint8 && info.Input.Kind == Float32 {
		x.tables = info.byteTables()
	}
	for _, path := range paths {
		var content []byte
		if path == "-" {
			content, err = disk.ReadStream(os.Stdin, disk.MaxText)
		} else {
			content, err = disk.Read(path, disk.MaxText)
		}
		if err != nil {
			return nil, err
		}
		if err := x.add(path, content, t); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return x, nil
}

func (x *Inputs) add(path string, content []byte, t *tokenizer.Tokenizer) error {
	switch shape := x.info.Input.Shape; {
	case len(content) == 0:
		return errors.New("it is empty; want an input of the model")
	case bytes.HasPrefix(content, []byte(npyMagic)):
		array, err := decodeNPY(content)
		if err != nil {
			return err
		}
		return x.addArray(path, array)
	case t != nil:
		ids, err := t.Encode(content)
		if err != nil {
			return err
		}
		return x.addTokens(path, 0, converted[int64](slices.Concat(x.info.Begin, ids)))
	case x.info.Input.Kind == Int64 && x.info.Source == Uint8:
		return x.addTokens(path, 0, converted[int64](content))
	case x.tables == nil && x.info.Input.Kind == Float32 && len(shape) == 3 && shape[1]*shape[2] == 1:
		return x.addTable(path, content)
	case path != "-" && x.tables != nil && len(shape) == 3 && (shape[0] == 1 || shape[0] == 3):
		if _, _, err := image.DecodeConfig(bytes.NewReader(content)); err != nil {
			return fmt.Errorf("%w; want a PNG, JPEG or GIF that is whole, or %s", err, x.wanted())
		}
		x.inputs = append(x.inputs, input{path: path})
		return nil
	}
	remedy := x.wanted()
	if x.info.Input.Kind == Int64 && x.info.Name == "text" {
		remedy += ", or text with the tokenizer that the set was made with"
	}
	return fmt.Errorf("it is no file of NumPy; want %s", remedy)
}

// wanted describes the arrays that hold inputs.
func (x *Inputs) wanted() string {
	if x.info.Input.Kind == Int64 {
		return fmt.Sprintf("an .npy of int64 [n t], tokens from 0 to %d", x.info.Classes-1)
	}
	return fmt.Sprintf("an .npy of %v %v, or with a dimension more in front", x.info.Source,
		x.info.Input.Shape)
}

func (x *Inputs) addArray(path string, a fileArray) error {
	if err := checkArray("the numbers", a.Array); err != nil {
		return err
	}
	refused := fmt.Errorf("it is %v %v; want %s", a.Kind, a.Shape, x.wanted())
	if x.info.Input.Kind == Int64 {
		if a.Kind == Uint8 {
			a.Kind, a.Int64 = Int64, converted[int64](a.Uint8)
		}
		if a.Kind != Int64 || len(a.Shape) > 2 {
			return refused
		}
		row := 0
		for tokens := range slices.Chunk(a.Int64, int(a.Shape[len(a.Shape)-1])) {
			if err := x.addTokens(path, row, tokens); err != nil {
				return err
			}
			row++
		}
		return nil
	}
	rows, ok := rowsOf(a.Shape, x.info.Input.Shape)
	if a.Kind != x.info.Source || !ok {
		return refused
	}
	size := x.info.Input.Size()
	for row := range rows {
		floats := make([]float32, size)
		if a.Kind == Uint8 {
			writeBytes(floats, a.Uint8[row*size:][:size], x.tables)
		} else {
			x.info.normaliseSample(floats, a, row)
		}
		x.inputs = append(x.inputs, input{path: path, row: row, floats: floats})
	}
	return nil
}

// addTable adds the rows of a table. Its separator is the first to give the samples' columns.
func (x *Inputs) addTable(path string, content []byte) (err error) {
	if err := disk.CheckUTF8(content); err != nil {
		return err
	}
	for _, separator := range ",;\t" {
		var columns []int
		var all []float64
		var failed error
		for line, record := range (CSV{Separator: separator}).lines(content, &failed) {
			if columns == nil {
				var names bool
				if columns, names = x.columns(record); columns == nil {
					failed = fmt.Errorf("line %d: it has %d columns; want %s", line, len(record),
						x.wantedColumns())
					break
				} else if names {
					continue
				}
			}
			if all, failed = appendNumbers(all, line, record, columns); failed != nil {
				break
			}
		}
		if n := len(columns); n > 0 {
			shape := []int64{int64(len(all) / n), int64(n), 1, 1}
			return cmp.Or(failed, x.addArray(path, fileArray{Array{Kind: Float32, Shape: shape,
				Float32: converted[float32](all)}, all}))
		}
		err = cmp.Or(err, failed)
	}
	return err
}

func (x *Inputs) wantedColumns() string {
	if x.info.Columns != nil {
		return strings.Join(x.info.Columns, ", ") + ", of which the last may be left out"
	}
	return fmt.Sprintf("%d, or one more for the target", x.info.Input.Size())
}

// columns returns the inputs' columns and whether the first line has their names. The columns are
// nil if the line does not fit the samples.
func (x *Inputs) columns(first []string) (columns []int, names bool) {
	place, size := map[string]int{}, x.info.Input.Size()
	for i, name := range first {
		place[name] = i
	}
	for i := range x.info.Columns {
		if at, found := place[x.info.Columns[i]]; found && i < size {
			columns = append(columns, at)
		}
	}
	if len(columns) == size {
		return columns, true
	}
	columns = nil
	for i := range first {
		if len(first) == size || i+1 != cmp.Or(x.info.TargetColumn, len(first)) {
			columns = append(columns, i)
		}
	}
	if len(columns) != size || len(first) != size && x.info.Columns != nil {
		return nil, false
	}
	return columns, false
}

// rowsOf returns the number of samples in an array: 1, or its first dimension. It ignores dimensions of 1.
func rowsOf(array, sample []int64) (int, bool) {
	if len(array) > 0 && slices.Equal(array[1:], sample) {
		return int(array[0]), true
	}
	one := func(n int64) bool { return n == 1 }
	a, s := slices.DeleteFunc(slices.Clone(array), one), slices.DeleteFunc(slices.Clone(sample), one)
	if len(a) > len(s) && slices.Equal(a[1:], s) {
		return int(a[0]), true
	}
	return 1, slices.Equal(a, s)
}

// addTokens adds an input. It keeps as many of the last tokens as a sample has.
func (x *Inputs) addTokens(path string, row int, tokens []int64) error {
	if len(tokens) == 0 {
		return errors.New("there are no tokens in it")
	}
	for i, token := range tokens {
		if token < 0 || token >= int64(x.info.Classes) {
			return fmt.Errorf("token %d of row %d is %d; want 0 to %d: the model was trained with other "+
				"tokens", i, row, token, x.info.Classes-1)
		}
	}
	tokens = tokens[max(len(tokens)-x.info.Input.Size(), 0):]
	x.inputs = append(x.inputs, input{path: path, row: row, tokens: tokens})
	return nil
}

// Source returns the file of an input, and its row there, counted from 0.
func (x *Inputs) Source(index int) (path string, row int) {
	return x.inputs[index].path, x.inputs[index].row
}

// Length returns the number of a sample's tokens before its zeros. It is 0 for other inputs.
func (x *Inputs) Length(index int) int { return len(x.inputs[index].tokens) }

func (x *Inputs) Len() int   { return len(x.inputs) }
func (x *Inputs) Info() Info { return x.info }

func (x *Inputs) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(x, indices); err != nil {
		return err
	}
	clear(batch.Target.Int64)
	clear(batch.Target.Float32)
	size := x.info.Input.Size()
	return inParallel(len(indices), func(row int) error {
		in := x.inputs[indices[row]]
		switch {
		case in.tokens != nil:
			to := batch.Input.Int64[row*size:][:size]
			clear(to[copy(to, in.tokens):])
		case in.floats != nil:
			copy(batch.Input.Float32[row*size:], in.floats)
		default:
			return named("inputs", fillPicture(batch.Input.Float32[row*size:][:size], in.path,
				x.info.Input.Shape, nil, x.tables))
		}
		return nil
	})
}
