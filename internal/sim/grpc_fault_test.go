package sim

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// received are the messages of an answer as they came, and the error after them.
func received(t *testing.T, c vllmpb.VllmEngineClient, m *vllmpb.GenerateRequest, o ...grpc.CallOption) (all []*vllmpb.GenerateResponse, err error) {
	t.Helper()
	stream, err := c.Generate(t.Context(), m, o...)
	if err != nil {
		return nil, err
	}
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
}

func TestGRPCFaults(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1}).Regular(0)
	completes := func(all []*vllmpb.GenerateResponse) (n int) {
		for _, r := range all {
			if r.GetComplete() != nil {
				n++
			}
		}
		return n
	}
	last := func(all []*vllmpb.GenerateResponse) *vllmpb.GenerateResponse { return all[len(all)-1] }
	for _, x := range []struct {
		fault string
		want  codes.Code
		check func([]*vllmpb.GenerateResponse) bool
	}{
		{"code=UNAVAILABLE", codes.Unavailable, nil},
		{"status=503", codes.Unavailable, nil},
		{"status=429,body=busy", codes.ResourceExhausted, nil},
		{"code=DATA_LOSS", codes.DataLoss, nil},
		{"kind=complete-twice", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return completes(all) == 2 }},
		{"kind=chunk-after-complete", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return last(all).GetChunk() != nil && completes(all) == 1 }},
		{"kind=no-complete", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return completes(all) == 0 && len(all) > 3 }},
		{"kind=bad-index", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return all[0].GetChunk().GetIndex() == 1 }},
		{"kind=bad-ids", codes.OK, func(all []*vllmpb.GenerateResponse) bool {
			return all[0].GetChunk().GetTokenIds()[0] >= modelVocabulary
		}},
		{"kind=huge-message,body_size=1000000", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return proto.Size(all[0]) > 1000000 }},
		{"kind=huge-message,body_size=5000000", codes.ResourceExhausted, nil}, // the client's own bound
		{"kind=garbage", codes.Internal, nil},
		{"kv_params=[]", codes.OK, func(all []*vllmpb.GenerateResponse) bool {
			return last(all).GetComplete().GetKvTransferParamsJson() == "[]"
		}},
		{"finish=error", codes.OK, func(all []*vllmpb.GenerateResponse) bool {
			return len(all) == 2 && len(all[0].GetChunk().GetTokenIds()) == 0 &&
				all[1].GetComplete().GetFinishReason() == "error" && len(all[1].GetComplete().GetOutputIds()) == 0
		}},
		{"finish=abort", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return last(all).GetComplete().GetFinishReason() == "abort" }},
		{"end=event,after=2", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return len(all) == 2 }},
		{"end=body", codes.OK, func(all []*vllmpb.GenerateResponse) bool { return len(all) == 0 }},
		{"reset=event,after=2", codes.Unavailable, nil},
		{"close=body", codes.Unavailable, nil},
		{"die=event,after=2", codes.Internal, nil},
	} {
		f, err := ParseFault(x.fault)
		if err != nil {
			t.Fatal(err)
		}
		w.SetFault(f)
		all, err := received(t, grpcClient(t, w), generation("faults", nil))
		if status.Code(err) != x.want || x.check != nil && !x.check(all) {
			t.Errorf("%s: %v after %v, want %v", x.fault, err, all, x.want)
		}
		if err := w.WaitIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Restart(); err != nil { // after die
		t.Fatal(err)
	}
	// An answer that is not streamed is one message: what is to happen within does so before.
	for fault, want := range map[string]codes.Code{"reset=event,after=2": codes.Unavailable, "end=event,after=2": codes.OK, "die=event,after=2": codes.Internal} {
		f, err := ParseFault(fault)
		if err != nil {
			t.Fatal(err)
		}
		w.SetFault(f)
		all, err := received(t, grpcClient(t, w), generation("faults", func(m *vllmpb.GenerateRequest) { m.Stream = false }))
		if status.Code(err) != want || len(all) > 0 {
			t.Errorf("%s, not streamed: %v after %v, want %v and nothing", fault, err, all, want)
		}
		if err := w.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	w.ClearFaults()
	if all, err := received(t, grpcClient(t, w), generation("faults", nil)); err != nil || completes(all) != 1 {
		t.Errorf("without faults: %v", err)
	}
	for _, bad := range []string{"code=NO_SUCH", "kind=no-such"} {
		if _, err := ParseFault(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestGRPCFaultOfAnotherMethod(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1}).Regular(0)
	w.SetFault(Fault{Path: vllmpb.VllmEngine_GetLoads_FullMethodName, Code: "UNIMPLEMENTED"})
	c := grpcClient(t, w)
	if _, err := c.GetLoads(t.Context(), &vllmpb.GetLoadsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("GetLoads: %v", err)
	}
	if all, err := received(t, c, generation("x", nil)); err != nil || len(all) == 0 {
		t.Errorf("Generate: %v", err)
	}
}

// A stream that is silent ends when its client goes; nothing is left of it.
func TestGRPCSilence(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1}).Regular(0)
	w.SetFault(Fault{Do: Freeze, At: AtEvent, After: 1})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := grpcClient(t, w).Generate(ctx, generation("x", nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := w.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestGRPCGoAwayLetsCallsEnd(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{DecodeStep: time.Millisecond}}}).Regular(0)
	w.SetFault(Fault{Do: GoAway, At: AtEvent, After: 2, Count: 1})
	c := grpcClient(t, w)
	if all, err := received(t, c, generation("x", nil)); err != nil || all[len(all)-1].GetComplete() == nil {
		t.Errorf("the call that ran: %v", err)
	}
	if _, err := received(t, c, generation("x", nil)); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if n := w.Stats().Accepted; n != 2 {
		t.Errorf("%d connections, want another one after GOAWAY", n)
	}
}

// Pings that come faster than PingInterval end in GOAWAY, as by servers that mean well.
func TestGRPCTooManyPings(t *testing.T) {
	goAwayAfterPings := func(interval time.Duration) string {
		w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{PingInterval: interval}}).Regular(0)
		c, err := net.Dial("tcp", w.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		out := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, 0, 0, 4, 0, 0, 0, 0, 0) // empty SETTINGS
		// A request that goes on keeps pings allowed: HEADERS with :method POST, :scheme http,
		// and literals for the path and the type.
		block := []byte{0x83, 0x86}
		for _, h := range [][2]string{{":path", vllmpb.VllmEngine_Generate_FullMethodName}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			block = append(block, 0, byte(len(h[0])))
			block = append(append(append(block, h[0]...), byte(len(h[1]))), h[1]...)
		}
		out = append(append(out, 0, 0, byte(len(block)), 1, 4, 0, 0, 0, 1), block...)
		for range 6 {
			out = append(out, 0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		}
		if _, err := c.Write(out); err != nil {
			t.Fatal(err)
		}
		for acks := 0; acks < 6; {
			var head [9]byte
			if _, err := io.ReadFull(c, head[:]); err != nil {
				t.Fatalf("after %d acknowledgements: %v", acks, err)
			}
			payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
			if _, err := io.ReadFull(c, payload); err != nil {
				t.Fatal(err)
			}
			switch {
			case head[3] == 7:
				return string(payload[8:])
			case head[3] == 6 && head[4]&1 == 1:
				acks++
			}
		}
		return ""
	}
	if got := goAwayAfterPings(0); got != "too_many_pings" {
		t.Errorf("told %q, want too_many_pings", got)
	}
	if got := goAwayAfterPings(time.Nanosecond); got != "" {
		t.Errorf("told %q where pings are welcome", got)
	}
}

func TestGRPCKeyAndTLS(t *testing.T) {
	server, pool, err := SelfSigned("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{APIKey: "secret", TLS: server}}).Regular(0)
	if !strings.HasPrefix(w.URL(), "grpcs://") {
		t.Error(w.URL())
	}
	conn, err := grpc.NewClient("passthrough:///"+w.Addr(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, "")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := vllmpb.NewVllmEngineClient(conn)
	if _, err := c.HealthCheck(t.Context(), &vllmpb.HealthCheckRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without the key: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	if _, err := c.HealthCheck(ctx, &vllmpb.HealthCheckRequest{}); err != nil {
		t.Errorf("with the key: %v", err)
	}
}

// A worker that is killed resets its connections; one that stops lets calls end.
func TestGRPCKillAndStop(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{DecodeStep: time.Millisecond}}}).Regular(0)
	begin := func() grpc.ServerStreamingClient[vllmpb.GenerateResponse] {
		stream, err := grpcClient(t, w).Generate(t.Context(), generation("x", func(m *vllmpb.GenerateRequest) { m.SamplingParams.MaxTokens = proto.Uint32(200) }))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream := begin()
	w.Kill()
	if _, err := collectRest(stream); status.Code(err) != codes.Unavailable {
		t.Errorf("killed: %v", err)
	}
	if r := w.Requests()[0]; r.Outcome != Killed {
		t.Errorf("outcome %q", r.Outcome)
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	stream = begin()
	stopped := make(chan error, 1)
	go func() { stopped <- w.Stop(t.Context()) }()
	if done, err := collectRest(stream); err != nil || done.GetFinishReason() != "length" {
		t.Errorf("stopped: %v %v", done, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// The log has the message, the method, the metadata and how it ended.
func TestGRPCLog(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1}).Regular(0)
	c := grpcClient(t, w)
	sent := generation("log", nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "abc")
	stream, err := c.Generate(ctx, sent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collectRest(stream); err != nil {
		t.Fatal(err)
	}
	if _, err := c.HealthCheck(t.Context(), &vllmpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitEnded(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r := w.Requests()[0]
	var got vllmpb.GenerateRequest
	if err := proto.Unmarshal(r.Body, &got); err != nil || !proto.Equal(&got, sent) {
		t.Errorf("body %v %v", &got, err)
	}
	if r.Path != vllmpb.VllmEngine_Generate_FullMethodName || r.Header.Get("X-Request-Id") != "abc" || r.RID != "r" || r.Code != "OK" ||
		r.Status != 200 || r.Outcome != Complete || r.Events < 10 || r.FirstByte.IsZero() || !r.Stream {
		t.Errorf("entry %+v", r)
	}
	if p := w.Probes(); len(p) != 1 || p[0].Path != vllmpb.VllmEngine_HealthCheck_FullMethodName {
		t.Errorf("probes %+v", p)
	}
}

func TestGRPCTokenizerComesInParts(t *testing.T) {
	stream, err := grpcClient(t, grpcFleet(t, Options{Regular: 1}).Regular(0)).GetTokenizer(t.Context(), &commonpb.GetTokenizerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var archive []byte
	parts, digest := 0, ""
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil || digest != "" {
			t.Fatalf("part %d: %v after digest %q", parts, err, digest)
		}
		archive, digest = append(archive, part.Data...), part.Sha256
		parts++
	}
	sum := sha256.Sum256(archive)
	if parts < 2 || digest != hex.EncodeToString(sum[:]) {
		t.Errorf("%d parts, digest %q", parts, digest)
	}
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil || len(z.File) != 5 {
		t.Errorf("%v", err)
	}
}
