package translate

import "testing"

func BenchmarkStreamEvent(b *testing.B) {
	event := []byte(`data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"some/model","choices":[{"index":0,"delta":{"role":null,"content":" token","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}` + "\n\n")
	for name, x := range map[string]Exchange{
		"messages":  &Messages{opts: testOptions.withDefaults(), model: raw(`"m"`)},
		"responses": &Responses{opts: testOptions.withDefaults(), model: raw(`"m"`)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			s := x.Stream(0)
			write := func([]byte) {}
			for i := range b.N {
				if i%100000 == 0 {
					s = x.Stream(0)
				}
				if err := s.Feed(event, write); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
