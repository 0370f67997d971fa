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

// Predict calls each with the model's output for every sample of a set, in its order:
//
//	classification  the probability of each class: [classes]
//	next token      the probability of each token to follow the last one: [classes]. Of data.Inputs it is
//	                the last that is there (Length)
//	segmentation    the probability of each class at each pixel: [classes, height, width]
//	regression      the numbers
//
// in row-major order, in a slice of its own. set.Info says the task. The model runs in evaluation mode, and
// EvaluateConfig.Loss is not used. The error is each's, or the first failing batch's. If ctx ends first
// the error is ctx's. In a group all members call it, and each is called where the last stage is.
func Predict(ctx context.Context, p *pipe.Pipe, set data.Dataset, config EvaluateConfig,
	each func(sample int, output []float32) error) error {
	info := set.Info()
	task := info.Task()
	tokens, _ := set.(interface{ Length(index int) int })
	return forEach(ctx, "Predict", p, set, config,
		func(c *torch.Ctx, first int, batch data.Batch, output *torch.Tensor) error {
			all := torch.Values[float32](c.To(output, torch.Float32))
			size := len(all) / batch.Rows
			for row := range batch.Rows {
				out := all[row*size:][:size:size]
				if task == data.NextToken {
					last := info.Input.Size()
					if tokens != nil {
						last = tokens.Length(first + row)
					}
					out = column(out, info.Input.Size(), last-1)
				}
				switch task { // the model may have more classes than the set
				case data.Regression:
				case data.Segmentation:
					softmax(out, info.Target.Size())
				default:
					softmax(out, 1)
				}
				if err := each(first+row, slices.Clone(out)); err != nil {
					return err
				}
			}
			return nil
		})
}

func column(matrix []float32, columns, index int) (out []float32) {
	for i := index; i < len(matrix); i += columns {
		out = append(out, matrix[i])
	}
	return out
}

// softmax makes probabilities of logits [classes, positions].
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

// Likely are the indices of the k greatest probabilities, the greatest first; of equal ones the lower
// index comes first.
func Likely(probabilities []float32, k int) []int {
	order := make([]int, len(probabilities))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(probabilities[b], probabilities[a]) })
	return order[:min(max(k, 0), len(order))]
}
