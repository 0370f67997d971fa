package main

func Example() {
	main()
	// Output:
	// step 0  loss 1.117
	// step 1  loss 1.064
	// step 2  loss 1.029
	// step 3  loss 0.945
	// step 4  loss 0.846
}
