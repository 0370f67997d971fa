package train

import (
	"cmp"
	"context"
	"math"
	"slices"

	"penstock.example/data"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Predict calls each with the model's output for every sample of a set, in order. The output is a new
// slice, in row-major order. Its content depends on the task of set.Info:
//
//	classification  the probability of each class: [classes]
//	next token      the probability of each token to follow the sample's last token: [classes]. If a
//	                sample of data.Inputs ends with zeros, its last token is before them (Length)
//	segmentation    the probability of each class at each pixel: [classes, height, width]
//	regression      the numbers
//
// The model runs in evaluation mode, and EvaluateConfig.Loss is not used. Predict returns the first
// error of a call, a batch or ctx. Predict is collective. The process of the last stage calls each
// while the pipe runs, so each must not use the pipe.
func Predict(ctx context.Context, p *pipe.Pipe, set data.Dataset, config EvaluateConfig,
	each func(sample int, output []float32) error) error {
	info := set.Info()
	task := info.Task()
	tokens, _ := set.(interface{ Length(index int) int })
	return forEach(ctx, "Predict", p, set, config,
		func(c *torch.Ctx, _ data.Batch, first, _ int, output *torch.Tensor) error {
			all := torch.Values[float32](c.To(output, torch.Float32))
			rows := int(output.Shape()[0])
			size := len(all) / rows
			for row := range rows {
				out := all[row*size:][:size:size]
				positions := 1 // the number of classes is the model's, which may exceed the set's
				switch task {
				case data.Segmentation:
					positions = info.Target.Size()
				case data.NextToken:
					length := info.Input.Size()
					last := length - 1
					if tokens != nil {
						last = tokens.Length(first+row) - 1
					}
					for i := range size / length {
						out[i] = out[i*length+last]
					}
					out = out[:size/length]
				}
				if out = slices.Clone(out); task != data.Regression {
					softmax(out, positions)
				}
				if err := each(first+row, out); err != nil {
					return err
				}
			}
			return nil
		})
}

// softmax replaces logits [classes, positions] by probabilities.
func softmax(x []float32, positions int) {
	for at := range positions {
		greatest, sum := math.Inf(-1), 0.0
		for i := at; i < len(x); i += positions {
			greatest = max(greatest, float64(x[i]))
		}
		for i := at; i < len(x); i += positions {
			sum += math.Exp(float64(x[i]) - greatest)
		}
		for i := at; i < len(x); i += positions {
			x[i] = float32(math.Exp(float64(x[i])-greatest) / sum)
		}
	}
}

// Likely returns the indices of the k greatest probabilities, the greatest first. Among equal ones the
// lower index comes first.
func Likely(probabilities []float32, k int) []int {
	order := make([]int, len(probabilities))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order,
		func(a, b int) int { return cmp.Compare(probabilities[b], probabilities[a]) })
	return order[:min(max(k, 0), len(order))]
}
