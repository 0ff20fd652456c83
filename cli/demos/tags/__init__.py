"""`cq demo tags`: a cloud of tags that many web servers count."""
