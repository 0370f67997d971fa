package data

// Task is what a data set asks of a model.
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

// Task says what the set asks of a model, by the kinds and shapes of inputs and targets.
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

// Outputs is how many numbers a model gives for each target: one for each class, or, for
// regression, those of the target.
func (i Info) Outputs() int {
	if i.Task() == Regression {
		return i.Target.Size()
	}
	return i.Classes
}
