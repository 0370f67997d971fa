package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/train"
)

func newCheckpoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Look at checkpoints and check them",
		Long: `Look at the checkpoints of penstock train --out: directories such as step-000200, with
model.safetensors, optimizer.safetensors, and the step, recipe and hashes in state.json.`,
		Example: `  penstock checkpoint inspect out/fashion
  penstock checkpoint verify out/fashion/step-000200`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointInspect(), newCheckpointVerify())
	return cmd
}

// findCheckpoint opens a checkpoint, or the newest one in the directory of a run. With best it opens the
// checkpoint of the run that has the lowest validation loss.
func findCheckpoint(dir string, best bool) (c *train.Checkpoint, err error) {
	switch c, err = train.OpenCheckpoint(dir); {
	case err != nil:
		return nil, wrongInput(err)
	case best && c.Best == nil:
		return nil, badUsage("--best: there was no validation up to %s; want a run with --validate", c.Path)
	case best:
		return train.OpenCheckpoint(train.Store{Dir: filepath.Dir(c.Path)}.Path(c.Best.Step))
	}
	return c, nil
}

const whichCheckpoint = "DIR is a checkpoint, or the directory of penstock train --out for its newest one."

func newCheckpointInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Print what is in a checkpoint",
		Long: `Print the step, the position in the data, the recipe, the files, and the tensors with
their types, shapes and sizes. Only state.json is read.

` + whichCheckpoint,
		Example: `  penstock checkpoint inspect out/fashion --format json | jq .recipe`,
		Args:    arguments("DIR"),
	}
	return resultVerb(cmd, "", func(_ *cobra.Command, args []string) (result, error) {
		found, err := findCheckpoint(args[0], false)
		if err != nil {
			return result{}, err
		}
		c := checkpointLine{found.Path, found.Contents}
		return result{line: c, text: func(w io.Writer) {
			var recipe bytes.Buffer
			json.Indent(&recipe, c.Recipe, "", "  ") // it was read from JSON
			fmt.Fprintf(w, "checkpoint\t%s\nstep\t%d\nposition\tbatch %d of epoch %d is next, both "+
				"counted from 0\n\nrecipe: %s\n\n", c.Path, c.Step, c.Position.Batch, c.Position.Epoch,
				&recipe)
			row(w, "FILE", "BYTES", "TENSORS", "SHA256")
			files := slices.Sorted(maps.Keys(c.Files))
			for _, name := range files {
				f := c.Files[name]
				row(w, name, f.Bytes, len(f.Tensors), f.SHA256)
			}
			fmt.Fprintln(w)
			row(w, "TENSOR", "TYPE", "SHAPE", "BYTES", "FILE")
			for _, name := range files {
				tensors := c.Files[name].Tensors
				for _, tensor := range slices.Sorted(maps.Keys(tensors)) {
					x := tensors[tensor]
					row(w, tensor, x.DType, x.Shape, x.Bytes(), name)
				}
			}
		}}, nil
	})
}

type checkpointLine struct {
	Path string `json:"path"`
	train.Contents
}

func newCheckpointVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every byte of a checkpoint",
		Long: `Read all files of a checkpoint and compare their hashes with state.json. If a file is
missing or damaged, the exit code is 1.

` + whichCheckpoint,
		Args: arguments("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0], false)
			if err != nil {
				return err
			}
			if damage := c.Damage(); len(damage) > 0 {
				return fmt.Errorf("checkpoint %s is damaged:\n%w", c.Path, errors.Join(damage...))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is as it was written: step %d, %d files\n", c.Path,
				c.Step, len(c.Files))
			return err
		},
	}
}

var exportTypes = map[string]safetensors.DType{"float16": safetensors.F16, "bfloat16": safetensors.BF16,
	"float32": safetensors.F32, "float64": safetensors.F64}

func newExport() *cobra.Command {
	names := slices.Sorted(maps.Keys(exportTypes))
	var out, dtype string
	var best, adapter bool
	cmd := &cobra.Command{
		Use:   "export DIR --out FILE.safetensors|FOLDER",
		Short: "Write a trained model for PyTorch",
		Long: `Write the parameters and buffers of a trained model to a safetensors file for PyTorch,
by their names in torchvision, and for gpt2 in Hugging Face's library. Adapters of --lora
are merged. The checkpoint is checked first. If it is damaged, nothing is written.

If the model came from a folder, --out may be a new FOLDER: config.json, tokenizer and
weights, which the transformers library loads.

` + whichCheckpoint,
		Example: `  penstock export out/pets --best --dtype float16 --out pets.safetensors
  penstock export out/llama --adapter --out adapter`,
		Args: arguments("DIR", "--out"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0], best)
			if err != nil {
				return err
			}
			t := &trained{checkpoint: c}
			toFolder := adapter || models.IsFolder(c.Recipe.Model.Name) && out != stdoutPath &&
				filepath.Ext(out) != ".safetensors"
			if _, lora := settingsOf(c.Recipe.Model)["lora"]; toFolder || lora {
				err = wrongInput(t.makeModel())
			}
			switch {
			case err != nil:
			case adapter && t.lora.Rank == 0:
				err = badUsage("--adapter: the run was without --lora; leave it out")
			case toFolder:
				err = checkNewFolder(out)
			case out != stdoutPath && filepath.Ext(out) != ".safetensors":
				err = badUsage("--out %s: want a FILE.safetensors", out)
			default:
				err = probe("out", out, c.Paths()...)
			}
			if err != nil {
				return err
			}
			count := 0
			err = c.Merge(func(model []safetensors.Tensor) error {
				if t.lora.Rank > 0 && !adapter {
					model = nn.MergeLoRA(t.model, model)
				}
				for i, tensor := range model {
					if to, ok := exportTypes[dtype]; ok && tensor.DType.Float() && tensor.DType != to {
						model[i] = safetensors.Converting(tensor, to)
					}
				}
				count = len(model)
				switch {
				case adapter:
					count = len(nn.State(nn.Adapters(t.model)))
					return models.WriteAdapter(out, c.Recipe.Model.Name, t.lora.LoRA, model)
				case toFolder:
					return exportFolder(out, dtype, t, model)
				case out == stdoutPath:
					return safetensors.Write(cmd.OutOrStdout(), model, safetensors.PyTorch)
				}
				return safetensors.WriteFile(out, model, safetensors.PyTorch)
			})
			if err == nil && out != stdoutPath {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tensors of step %d\n", out, count, c.Step)
			}
			return withRemedy(err, false)
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	option.Path(s, &out, "out", "`FILE` to write, such as model.safetensors; or a new folder")
	option.Word(s, &dtype, "dtype", "", "`TYPE` of floats: "+strings.Join(names, ", "), names...)
	s.BoolVar(&adapter, "adapter", false, "write the adapter of --lora alone, in a folder for PEFT")
	bestFlag(s, &best)
	return cmd
}

// checkNewFolder refuses an --out that exists and is not an empty folder.
func checkNewFolder(out string) error {
	entries, err := os.ReadDir(out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case len(entries) > 0:
		return badUsage("--out %s is not empty; want a new folder", out)
	}
	return wrongInput(unwritable("out", out, err))
}
