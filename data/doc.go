// Package data reads data sets and hands them out in batches, as Go slices: what becomes of them on
// a device is the caller's. It has no tensors and downloads nothing.
//
//	train, test, err := data.Open("fashion-mnist", "", data.Options{})
//	loader, err := data.NewLoader(train, data.LoaderConfig{BatchSize: 64, Seed: 1, Shuffle: true, Prefetch: 2})
//	defer loader.Close()
//	for epoch := range 3 {
//		for {
//			batch, err := loader.Next(ctx)
//			if err == io.EOF {
//				break // the epoch is over, the next call begins another
//			}
//			...
//		}
//	}
//
// The data, the seed and the position alone decide what a Loader delivers. Prefetching
// changes nothing but the time, and a run that is resumed at a saved Position sees the batches that
// it would have seen.
package data
