"""The paper's claims, and how stored results decide them."""
