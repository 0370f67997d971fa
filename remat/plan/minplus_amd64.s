#include "textflag.h"

// func cpuid(leaf, sub uint32) (eax, ebx, ecx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-20
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	RET

// func xgetbv() uint32
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, ret+0(FP)
	RET

// func minPlusTwo512(out, a, b *float32, n int, c float32)
TEXT ·minPlusTwo512(SB), NOSPLIT, $0-36
	MOVQ out+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ n+24(FP), CX
	VBROADCASTSS c+32(FP), Z0
	XORQ AX, AX
	SUBQ $64, CX
	JLT  rest

loop:
	VMOVUPS (SI)(AX*4), Z1
	VMOVUPS 64(SI)(AX*4), Z2
	VMOVUPS 128(SI)(AX*4), Z3
	VMOVUPS 192(SI)(AX*4), Z4
	VADDPS  (DX)(AX*4), Z1, Z1
	VADDPS  64(DX)(AX*4), Z2, Z2
	VADDPS  128(DX)(AX*4), Z3, Z3
	VADDPS  192(DX)(AX*4), Z4, Z4
	VADDPS  Z0, Z1, Z1
	VADDPS  Z0, Z2, Z2
	VADDPS  Z0, Z3, Z3
	VADDPS  Z0, Z4, Z4
	VMINPS  (DI)(AX*4), Z1, Z1
	VMINPS  64(DI)(AX*4), Z2, Z2
	VMINPS  128(DI)(AX*4), Z3, Z3
	VMINPS  192(DI)(AX*4), Z4, Z4
	VMOVUPS Z1, (DI)(AX*4)
	VMOVUPS Z2, 64(DI)(AX*4)
	VMOVUPS Z3, 128(DI)(AX*4)
	VMOVUPS Z4, 192(DI)(AX*4)
	ADDQ    $64, AX
	SUBQ    $64, CX
	JGE     loop

rest:
	ADDQ $48, CX // what is left, less 16
	JLT  last

one:
	VMOVUPS (SI)(AX*4), Z1
	VADDPS  (DX)(AX*4), Z1, Z1
	VADDPS  Z0, Z1, Z1
	VMINPS  (DI)(AX*4), Z1, Z1
	VMOVUPS Z1, (DI)(AX*4)
	ADDQ    $16, AX
	SUBQ    $16, CX
	JGE     one

last:
	ADDQ      $16, CX // what is left, below 16
	JEQ       done
	MOVL      $1, BX
	SHLL      CX, BX
	DECL      BX
	KMOVW     BX, K1
	VMOVUPS.Z (SI)(AX*4), K1, Z1
	VMOVUPS.Z (DX)(AX*4), K1, Z2
	VMOVUPS.Z (DI)(AX*4), K1, Z3
	VADDPS    Z2, Z1, Z1
	VADDPS    Z0, Z1, Z1
	VMINPS    Z3, Z1, Z1
	VMOVUPS   Z1, K1, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func minPlusOne512(out, a *float32, n int, c float32)
TEXT ·minPlusOne512(SB), NOSPLIT, $0-28
	MOVQ out+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS c+24(FP), Z0
	XORQ AX, AX
	SUBQ $64, CX
	JLT  rest

loop:
	VADDPS  (SI)(AX*4), Z0, Z1
	VADDPS  64(SI)(AX*4), Z0, Z2
	VADDPS  128(SI)(AX*4), Z0, Z3
	VADDPS  192(SI)(AX*4), Z0, Z4
	VMINPS  (DI)(AX*4), Z1, Z1
	VMINPS  64(DI)(AX*4), Z2, Z2
	VMINPS  128(DI)(AX*4), Z3, Z3
	VMINPS  192(DI)(AX*4), Z4, Z4
	VMOVUPS Z1, (DI)(AX*4)
	VMOVUPS Z2, 64(DI)(AX*4)
	VMOVUPS Z3, 128(DI)(AX*4)
	VMOVUPS Z4, 192(DI)(AX*4)
	ADDQ    $64, AX
	SUBQ    $64, CX
	JGE     loop

rest:
	ADDQ $48, CX
	JLT  last

one:
	VADDPS  (SI)(AX*4), Z0, Z1
	VMINPS  (DI)(AX*4), Z1, Z1
	VMOVUPS Z1, (DI)(AX*4)
	ADDQ    $16, AX
	SUBQ    $16, CX
	JGE     one

last:
	ADDQ      $16, CX
	JEQ       done
	MOVL      $1, BX
	SHLL      CX, BX
	DECL      BX
	KMOVW     BX, K1
	VMOVUPS.Z (SI)(AX*4), K1, Z1
	VMOVUPS.Z (DI)(AX*4), K1, Z3
	VADDPS    Z0, Z1, Z1
	VMINPS    Z3, Z1, Z1
	VMOVUPS   Z1, K1, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func minPlusTwo256(out, a, b *float32, n int, c float32)
TEXT ·minPlusTwo256(SB), NOSPLIT, $0-36
	MOVQ out+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ n+24(FP), CX
	VBROADCASTSS c+32(FP), Y0
	XORQ AX, AX
	SUBQ $32, CX
	JLT  rest

loop:
	VMOVUPS (SI)(AX*4), Y1
	VMOVUPS 32(SI)(AX*4), Y2
	VMOVUPS 64(SI)(AX*4), Y3
	VMOVUPS 96(SI)(AX*4), Y4
	VADDPS  (DX)(AX*4), Y1, Y1
	VADDPS  32(DX)(AX*4), Y2, Y2
	VADDPS  64(DX)(AX*4), Y3, Y3
	VADDPS  96(DX)(AX*4), Y4, Y4
	VADDPS  Y0, Y1, Y1
	VADDPS  Y0, Y2, Y2
	VADDPS  Y0, Y3, Y3
	VADDPS  Y0, Y4, Y4
	VMINPS  (DI)(AX*4), Y1, Y1
	VMINPS  32(DI)(AX*4), Y2, Y2
	VMINPS  64(DI)(AX*4), Y3, Y3
	VMINPS  96(DI)(AX*4), Y4, Y4
	VMOVUPS Y1, (DI)(AX*4)
	VMOVUPS Y2, 32(DI)(AX*4)
	VMOVUPS Y3, 64(DI)(AX*4)
	VMOVUPS Y4, 96(DI)(AX*4)
	ADDQ    $32, AX
	SUBQ    $32, CX
	JGE     loop

rest:
	ADDQ $32, CX
	JEQ  done

one:
	VMOVUPS (SI)(AX*4), Y1
	VADDPS  (DX)(AX*4), Y1, Y1
	VADDPS  Y0, Y1, Y1
	VMINPS  (DI)(AX*4), Y1, Y1
	VMOVUPS Y1, (DI)(AX*4)
	ADDQ    $8, AX
	SUBQ    $8, CX
	JGT     one

done:
	VZEROUPPER
	RET

// func minPlusOne256(out, a *float32, n int, c float32)
TEXT ·minPlusOne256(SB), NOSPLIT, $0-28
	MOVQ out+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS c+24(FP), Y0
	XORQ AX, AX
	SUBQ $32, CX
	JLT  rest

loop:
	VADDPS  (SI)(AX*4), Y0, Y1
	VADDPS  32(SI)(AX*4), Y0, Y2
	VADDPS  64(SI)(AX*4), Y0, Y3
	VADDPS  96(SI)(AX*4), Y0, Y4
	VMINPS  (DI)(AX*4), Y1, Y1
	VMINPS  32(DI)(AX*4), Y2, Y2
	VMINPS  64(DI)(AX*4), Y3, Y3
	VMINPS  96(DI)(AX*4), Y4, Y4
	VMOVUPS Y1, (DI)(AX*4)
	VMOVUPS Y2, 32(DI)(AX*4)
	VMOVUPS Y3, 64(DI)(AX*4)
	VMOVUPS Y4, 96(DI)(AX*4)
	ADDQ    $32, AX
	SUBQ    $32, CX
	JGE     loop

rest:
	ADDQ $32, CX
	JEQ  done

one:
	VADDPS  (SI)(AX*4), Y0, Y1
	VMINPS  (DI)(AX*4), Y1, Y1
	VMOVUPS Y1, (DI)(AX*4)
	ADDQ    $8, AX
	SUBQ    $8, CX
	JGT     one

done:
	VZEROUPPER
	RET
