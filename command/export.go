package command

import (
	"errors"
	"fmt"
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
)

// exportTypes are the values of --dtype.
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
		Args: filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := need(cmd, "out"); err != nil {
				return err
			}
			c, err := findCheckpoint(args[0], best)
			if err != nil {
				return err
			}
			t, stream := &trained{checkpoint: c}, standardOutput(cmd, out)
			layout := adapter || models.IsFolder(c.Recipe.Model.Name) && stream == nil &&
				filepath.Ext(out) != ".safetensors"
			if _, lora := settingsOf(c.Recipe.Model)["lora"]; layout || lora {
				err = wrongInput(t.makeModel())
			}
			switch {
			case err != nil:
			case adapter && t.lora.Rank == 0:
				err = badUsage("--adapter: the run was without --lora; leave it out")
			case layout:
				err = checkNewFolder(out)
			default:
				err = checkOut(cmd, out, c.Paths()...)
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
				case layout:
					return exportFolder(out, dtype, t, model)
				case stream != nil:
					return safetensors.Write(stream, model, safetensors.PyTorch)
				}
				return safetensors.WriteFile(out, model, safetensors.PyTorch)
			})
			if err == nil && stream == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tensors of step %d\n", out, count, c.Step)
			}
			return err
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
