package arg

import "testing"

func TestNearest(t *testing.T) {
	models := []string{"mlp", "resnet20", "resnet32", "resnet200", "gpt", "densenet121"}
	for _, tt := range []struct{ word, want string }{
		{"resnt20", "resnet20"}, {"resnet2", "resnet20"}, {"ResNet32", "resnet32"}, {"mpl", "mlp"}, {"modle", ""}, {"mlpp", "mlp"},
		{"gtp2", ""}, {"gtp", "gpt"}, {"", ""}, {"x", ""}, {"desnet121", "densenet121"}, {"transformer", ""},
	} {
		if got := Nearest(tt.word, models); got != tt.want {
			t.Errorf("Nearest(%q) = %q, want %q", tt.word, got, tt.want)
		}
	}
	for word, want := range map[string]string{"fashon": "fashion-mnist", "fp16": "float16", "bf16": "bfloat16", "fp64": "", "f": "", "mnits": "mnist"} {
		if got := Nearest(word, []string{"cifar10", "fashion-mnist", "mnist", "float16", "bfloat16", "float32"}); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got, want := OneOf("transformer", []string{"mlp", "gpt2"}), "want mlp or gpt2"; got != want {
		t.Errorf("OneOf: %q, want %q", got, want)
	}
	if got, want := OneOf("gp2", []string{"mlp", "gpt2", "vit", "unet"}), "did you mean gpt2? want one of mlp, gpt2, vit, unet"; got != want {
		t.Errorf("OneOf: %q, want %q", got, want)
	}
}
