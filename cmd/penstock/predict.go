package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/tokenizer"
	"penstock.example/train"
)

// predictFlags is the command line of penstock predict.
type predictFlags struct {
	trainedFlags
	top       int
	tokenizer string
	tokens    *tokenizer.Tokenizer // nil is none
}

func newPredict() *cobra.Command {
	var f predictFlags
	cmd := &cobra.Command{
		Use:   "predict DIR FILE... [flags]",
		Short: "Say what a trained model makes of files",
		Long: `Run the model of a run of penstock train on inputs in files, and write a line of JSON
for each, in their order:

  classes    {"file": "a.png", "row": 0,
             "classes": [{"class": 7, "name": "Bag", "probability": 0.93}, ...]}
  text       the same, of the token that follows the last one
  numbers    {"file": "x.npy", "row": 2, "values": [0.5]}
  pixels     {"file": "a.png", "row": 0, "pixels": [[0, 3, ...], ...]}, classes

A file is a picture (PNG, JPEG, GIF) for a model that was trained on pictures or bytes, text
for one that was trained on text, whose last bytes count, or an .npy of what the model was
trained on: one input, or several with a dimension in front. Inputs are resized and
normalised as in training.

DIR is the directory of --out of penstock train, whose newest checkpoint is meant, or a
checkpoint. The data of the run are not needed. If a file is no input of the model, nothing
is written.`,
		Example: `  penstock predict out/pets cat.jpg dog.jpg --top 3
  penstock predict out/pets --best photos/*.jpg | jq -r '[.file, .classes[0].name] | @tsv'
  penstock predict out/shakespeare line.txt
  penstock predict out/table x.npy`,
		Args: atLeast("DIR", "FILE"),
		RunE: interruptible("predicting", func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(cmd.OutOrStdout()); err != nil {
				return err
			}
			return f.run(cmd, args[0], args[1:])
		}),
	}
	s := cmd.Flags()
	s.SortFlags = false
	count(s, &f.top, "top", 5, "`K` most likely classes of each input")
	path(s, &f.tokenizer, "tokenizer", "`PATH` of the tokenizer for text with the vocabulary and merges of "+
		"the run's (default: the run's, --data-set tokenizer=PATH)")
	f.register(s)
	return cmd
}

// predictionLine is the JSON of a prediction.
type predictionLine struct {
	File    string      `json:"file"`
	Row     int         `json:"row"`
	Classes []classLine `json:"classes,omitempty"`
	Values  []float32   `json:"values,omitempty"`
	Pixels  [][]int     `json:"pixels,omitempty"`
}

type classLine struct {
	Class       int     `json:"class"`
	Name        string  `json:"name,omitempty"`
	Probability float32 `json:"probability"`
}

func (f *predictFlags) run(cmd *cobra.Command, dir string, files []string) (err error) {
	var inputs *data.Inputs
	t, err := f.open(cmd, dir, func(t *trained) (err error) {
		if t.recipe.Samples == nil {
			return fmt.Errorf("checkpoint %s does not say what its model reads, as it was saved by a Go "+
				"program without "+
				"Recipe.Samples; want train.Predict in Go", t.checkpoint.Path)
		}
		tokens, err := f.openTokenizer(t)
		if err != nil {
			return err
		}
		f.tokens = tokens
		inputs, err = data.NewInputs(*t.recipe.Samples, tokens, files)
		if err != nil && strings.Contains(err.Error(), "with the tokenizer") {
			err = fmt.Errorf("%w: --tokenizer PATH", err)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var all bytes.Buffer // so that nothing is written where something is wrong
	out := json.NewEncoder(&all)
	progress := newCounter(cmd.ErrOrStderr(), "predicting", "inputs")
	err = train.Predict(cmd.Context(), t.pipe, inputs, train.EvaluateConfig{Batch: t.batch,
		OnBatch: progress.at}, func(i int, output []float32) error {
		line, err := f.line(inputs, i, output)
		if err != nil {
			return err
		}
		return out.Encode(line)
	})
	progress.end()
	if err != nil {
		return withRemedy(err)
	}
	_, err = cmd.OutOrStdout().Write(all.Bytes())
	return err
}

// openTokenizer opens the tokenizer that the run's text was made tokens of by, or is nil.
func (f *predictFlags) openTokenizer(t *trained) (*tokenizer.Tokenizer, error) {
	samples, path := t.recipe.Samples, f.tokenizer
	if samples.Task() != data.NextToken || samples.Source == data.Uint8 {
		if path != "" {
			return nil, badUsage("--tokenizer %s: the model was not trained on tokens; want it left out",
				path)
		}
		return nil, nil
	}
	if path == "" {
		from, flags := trainingFlags()
		err := t.readFlags(from)
		if errors.Is(err, fs.ErrNotExist) || err == nil && flags.dataName != "text" {
			return nil, nil
		}
		var o data.Options
		if err = cmp.Or(err, data.Set("text", &o, flags.dataSettings)); err != nil {
			return nil, err
		}
		path = o.Tokenizer
	}
	opened, err := tokenizer.Open(path)
	if err != nil {
		err = fmt.Errorf("--tokenizer: %w", err)
	}
	return opened, err
}

// line is the prediction for an input.
func (f *predictFlags) line(inputs *data.Inputs, i int, output []float32) (line predictionLine, err error) {
	info := inputs.Info()
	line.File, line.Row = inputs.Source(i)
	if slices.ContainsFunc(output, func(x float32) bool {
		return math.IsNaN(float64(x)) ||
			math.IsInf(float64(x), 0)
	}) {
		return line, fmt.Errorf("%s, row %d: the model gives a number that is not finite: its training "+
			"diverged, or the input is far from what it was trained on", line.File, line.Row)
	}
	switch info.Task() {
	case data.Regression:
		line.Values = output
	case data.Segmentation:
		line.Pixels = likeliest(output, info)
	default:
		for _, class := range train.Likely(output, f.top) {
			line.Classes = append(line.Classes, classLine{class, f.className(info, class), output[class]})
		}
	}
	return line, nil
}

// likeliest is the most likely class of each pixel.
func likeliest(output []float32, info data.Info) (rows [][]int) {
	height, width := int(info.Target.Shape[0]), int(info.Target.Shape[1])
	for y := range height {
		row := make([]int, width)
		for x := range width {
			at := y*width + x
			for class := range info.Classes {
				if output[class*height*width+at] > output[row[x]*height*width+at] {
					row[x] = class
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// className is the name of a class, or "". Bytes are named by their characters, tokens
// by their text.
func (f *predictFlags) className(info data.Info, class int) string {
	switch {
	case f.tokens != nil && class < f.tokens.Len():
		text, err := f.tokens.Decode([]int32{int32(class)})
		if err != nil {
			return ""
		}
		return string(text)
	case class < len(info.ClassNames):
		return info.ClassNames[class]
	case info.Input.Kind == data.Int64 && info.Source == data.Uint8 && class < 128:
		return string(rune(class))
	}
	return ""
}
