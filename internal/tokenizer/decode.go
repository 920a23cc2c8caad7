package tokenizer

// parseDecoder reads the section "decoder" of the file.
func (t *Tokenizer) parseDecoder() error { return nil }
