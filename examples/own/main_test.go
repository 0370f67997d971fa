package main

func Example() {
	main()
	// Output:
	// step 0  loss 1.166
	// step 1  loss 1.095
	// step 2  loss 1.033
	// step 3  loss 0.979
	// step 4  loss 0.931
}
