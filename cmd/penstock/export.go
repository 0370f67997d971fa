package main

import (
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/safetensors"
)

// exportTypes are the types of --dtype.
var exportTypes = map[string]safetensors.DType{"float16": safetensors.F16, "bfloat16": safetensors.BF16, "float32": safetensors.F32, "float64": safetensors.F64}

func newExport() *cobra.Command {
	var out, dtype string
	var best bool
	names := []string{"float16", "bfloat16", "float32", "float64"}
	cmd := &cobra.Command{
		Use:   "export DIR --out FILE.safetensors",
		Short: "Write a trained model for others",
		Long: `Write the parameters and buffers of a run of penstock train to a safetensors file that
PyTorch's users load: {"format": "pt"}, and torchvision's names for its networks (resnet18,
vgg16, densenet121, vit_b_16, ...), Hugging Face's for gpt2. There is no tensor for the head of
gpt2, which is the embedding.

  weights = safetensors.torch.load_file("model.safetensors")
  torchvision.models.resnet18().load_state_dict(weights)

DIR is the directory of --out of penstock train, whose newest checkpoint is meant, or a
checkpoint, of any number of processes. The model's files are checked first: of one that is
damaged or missing nothing is written. --dtype rounds floating-point numbers to nearest; one that
becomes infinite is refused.`,
		Example: `  penstock export out/pets --out pets.safetensors
  penstock export out/pets --best --dtype float16 --out pets.safetensors`,
		Args: filesNamed("DIR"),
		PreRunE: func(*cobra.Command, []string) error {
			if out == "" {
				return badUsage("--out is needed: the file to write, such as model.safetensors")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := findTrained(args[0], best)
			if err != nil {
				return err
			}
			return writeModel(cmd, out, c, func(t safetensors.Tensor) (safetensors.Tensor, error) {
				if to, ok := exportTypes[dtype]; ok && t.DType.Float() && t.DType != to {
					return safetensors.Converting(t, to), nil
				}
				return t, nil
			})
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	path(s, &out, "out", "`FILE` to write; /dev/stdout for standard output")
	word(s, &dtype, "dtype", "", "`TYPE` of floating-point numbers: "+strings.Join(names, ", ")+" (default: as they were trained)", names...)
	bestFlag(s, &best)
	return cmd
}
