package data

import "fmt"

// Dataset is samples that are numbered from 0. Its methods may be called concurrently.
type Dataset interface {
	// Len returns the number of samples.
	Len() int

	// Info describes the samples. The caller does not change its slices.
	Info() Info

	// Fill makes batch hold the samples of these indices, in this order, and may reuse the memory
	// that batch has. It neither keeps nor changes indices. It returns an error if an index is not
	// in [0, Len()) or a sample cannot be read; batch is then unusable.
	Fill(batch *Batch, indices []int) error
}

// Info describes a data set. As JSON it describes samples to whoever has a model and not the data it
// was trained on.
type Info struct {
	Name    string `json:"name"`
	Classes int    `json:"classes,omitempty"` // a target is in [0, Classes); 0 for regression
	Input   Spec   `json:"input"`             // images are Float32 [channels, height, width]
	Target  Spec   `json:"target"`

	// Pad is the value of a black pixel in each channel, for augmentation to fill up with. It is
	// nil for inputs that are not images.
	Pad []float32 `json:"pad,omitempty"`

	// ClassNames has the name of each class. It is nil where classes are numbers.
	ClassNames []string `json:"class_names,omitempty"`

	// Source is what inputs are made of. Float32 inputs of Uint8 are pixels or other bytes, over 255
	// where Mean and Std are nil, or else (byte/255 - Mean) / Std with a number for each channel.
	// Float32 inputs of Float32 are as they are, or (x - Mean) / Std with a number for each column.
	// Int64 inputs of Uint8 are the bytes of a text.
	Source Kind      `json:"source"`
	Mean   []float32 `json:"mean,omitempty"`
	Std    []float32 `json:"std,omitempty"`

	// Columns are the names of a table's columns: the inputs' in their order, and the target's last. Nil
	// is no table, or a table without a header.
	Columns []string `json:"columns,omitempty"`

	// Tokenizer is the sum of the tokenizer that made tokens of text (tokenizer.Tokenizer.Sum). It is
	// "" where there was none, or it is not known.
	Tokenizer string `json:"tokenizer_sha256,omitempty"`
}

// OtherTokenizer reports whether the samples that i and o describe were made with different tokenizers. Where
// one of the two is not known, none is another.
func (i Info) OtherTokenizer(o Info) bool {
	return i.Tokenizer != "" && o.Tokenizer != "" && i.Tokenizer != o.Tokenizer
}

// checkTokenizer returns an error if a model that was trained on these samples was trained with another
// tokenizer than the one with this sum.
func (i Info) checkTokenizer(sum string) error {
	if !i.OtherTokenizer(Info{Tokenizer: sum}) {
		return nil
	}
	return fmt.Errorf("the tokenizer's vocabulary and merges have the SHA-256 %s, and the model was "+
		"trained with those of %s; want the tokenizer that it was trained with", sum, i.Tokenizer)
}

// Task is the kind of answer that a data set trains a model for.
type Task string

// The tasks.
const (
	// a target is a class of an input
	Classification Task = "classification"
	// a target is one or more Float32 numbers
	Regression Task = "regression"
	// a target is a class for each pixel of an image, Int64 [height, width]
	Segmentation Task = "segmentation"
	// input and target are Int64 tokens [length], the target the token that follows each
	NextToken Task = "next token"
)

// Task follows from the kinds and shapes of inputs and targets.
func (i Info) Task() Task {
	switch {
	case i.Target.Kind == Float32:
		return Regression
	case i.Input.Kind == Int64:
		return NextToken
	case len(i.Target.Shape) == 2:
		return Segmentation
	}
	return Classification
}

// Outputs is the number of a model's outputs for each target: the classes, or for regression the
// target's numbers.
func (i Info) Outputs() int {
	if i.Task() == Regression {
		return i.Target.Size()
	}
	return i.Classes
}

// Batch holds samples: row i of Input and row i of Target belong together. The Shapes begin with
// Rows.
type Batch struct {
	Input, Target Array
	Rows          int
}

// resize makes room for the samples of a set with these indices. It returns an error if an index is not in
// [0, Len()).
func (b *Batch) resize(set Dataset, indices []int) error {
	info := set.Info()
	if err := checkIndices(info.Name, set.Len(), indices); err != nil {
		return err
	}
	b.Input.Reset(len(indices), info.Input)
	b.Target.Reset(len(indices), info.Target)
	b.Rows = len(indices)
	return nil
}

func checkIndices(name string, length int, indices []int) error {
	for _, index := range indices {
		if index < 0 || index >= length {
			return fmt.Errorf("data: %s: sample %d asked for, there are samples 0 to %d", name, index,
				length-1)
		}
	}
	return nil
}
