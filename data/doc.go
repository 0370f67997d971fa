// Package data reads data sets and delivers them in batches of Go slices. It has no tensors and
// downloads nothing.
//
//	train, test, err := data.Open("fashion-mnist", "", data.Options{})
//	loader, err := data.NewLoader(train, data.LoaderConfig{BatchSize: 64, Seed: 1, Shuffle: true})
//	defer loader.Close()
//	for epoch := range 3 {
//		for {
//			batch, err := loader.Next(ctx)
//			if err == io.EOF {
//				break // the next call begins another epoch
//			}
//			...
//		}
//	}
//
// The batches of a Loader depend only on the data, the configuration and the position. Prefetching does
// not change them. A run resumed at a saved Position sees the batches of an uninterrupted run.
package data
